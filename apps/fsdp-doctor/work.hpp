// Checks in which all ranks work at the same time: matrix products, messages between nodes, files, and a small training run.
// They find faulty and slow nodes. fsdp-bench measures speed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// The slowest rank of a node.
struct NodeSpeed {
  std::string node = {};
  double flops = 0;            // FLOP/s of matrix products, of the fastest one
  std::string processor = {};  // its name, or that of the GPU; only nodes with the same one are compared
  std::size_t threads = 1;
  double busy = 1;  // the share of the time in which processors ran the rank's threads; 1 for a GPU
};
Finding judge_compute(const std::vector<NodeSpeed>& nodes, DType type, bool on_gpu);

/// The network of a node, measured with its neighbours in a ring of the nodes.
struct NodeLink {
  std::string node = {};
  double rate = 0;        // bytes per second that the node sends, while it receives as many: with the faster neighbour
  bool uses_tcp = false;  // true if the messages went through the kernel's TCP
  bool has_rdma = false;  // true if the node has an active interface of InfiniBand or similar
};
Finding judge_network(const std::vector<NodeLink>& nodes);
/// Returns the bytes that the node's interfaces have sent by TCP or other protocols of the kernel, without the loopback.
double bytes_sent_by_kernel(const std::filesystem::path& proc_net_dev = "/proc/self/net/dev");

/// `write` is the rate of all ranks together, in bytes per second; each rank has written `bytes` bytes.
Finding judge_files(double write, double bytes, std::size_t ranks);

/// `losses` are those of the updates on rank 0; `agreed` is true if all ranks have the same. `job` names the ranks and how they
/// are connected.
Finding judge_training(const std::vector<double>& losses, bool agreed, const std::string& job);

std::optional<Finding> check_compute(DoctorJob& job);
/// Returns no finding in a job of one node.
std::optional<Finding> check_network(DoctorJob& job);
/// Returns no finding if the save folder cannot be used.
std::optional<Finding> check_files(DoctorJob& job);
std::optional<Finding> check_training(DoctorJob& job);

}  // namespace fsdp
