// How fast the nodes are against each other: products, memory, the links between ranks; and a tiny training run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// Which of these are below 0.8 of the median, of the faster one where there are two. Empty for fewer than two.
std::vector<std::size_t> slow_ones(const std::vector<double>& rates);

/// What was measured on each node, in words.
struct Measurement {
  std::string unit;        // "GFLOP/s"
  bool is_shared = false;  // by the ranks of a node, so that nodes with different numbers of them cannot be compared
  std::string what;        // "in fp32 products of 512 x 512"
  std::string advice;      // where some nodes are slow
};
/// `rates` by node, of a rank on average, and `ranks`: how many each has.
Finding judge_rates(const std::vector<std::string>& nodes, const std::vector<double>& rates,
                    const std::vector<std::size_t>& ranks, const Measurement& measurement);

struct LinkFigures {
  double latency_s = 0;              // of a small sum over all ranks
  std::vector<double> near = {};     // GB/s that a rank receives of its node's others, by node; 0: it is alone there
  std::vector<double> between = {};  // GB/s that a node receives of another, the best of its pairs, by node; empty: one node
  std::string connection = {};       // "MPI between 2 nodes, shared memory within"
  bool shares_memory = true;         // the ranks of a node do, where they were meant to
  bool has_rdma = false;             // some node has a network for it
};
Finding judge_links(const std::vector<std::string>& nodes, const LinkFigures& links);

struct TrainingFigures {
  std::vector<double> losses = {};  // by update, of rank 0
  bool agreed = true;               // all ranks have the same losses
  double update_s = 0;              // the fastest
  std::string model = {};           // "0.12 M parameters"
  std::size_t ranks = 1;
  std::string how = {};  // by what GPUs communicate; empty: as the links say
};
Finding judge_training(const TrainingFigures& training);

std::optional<Finding> check_products(DoctorJob& job);
std::optional<Finding> check_memory(DoctorJob& job);
std::optional<Finding> check_links(DoctorJob& job);
std::optional<Finding> check_training(DoctorJob& job);

/// Which nodes exchange data in a round of a tournament of `nodes`: the partner of each, itself if it rests. In `nodes` - 1
/// rounds (`nodes`, of an odd number) each meets each other once.
std::vector<std::size_t> partners(std::size_t nodes, std::size_t round);

}  // namespace fsdp
