// What each node is and what it lets the ranks use: processors, threads, locked and shared memory, clocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// `instruction_sets` and `models` by node.
Finding judge_processors(const std::vector<std::string>& nodes, const std::vector<std::string>& instruction_sets,
                         const std::vector<std::string>& models);

/// What the ranks of a node have together.
struct NodeThreads {
  std::string node = {};
  std::size_t ranks = 1, threads = 1;
  std::size_t bound = 1;       // processors that at least one of them may run on
  std::size_t processors = 1;  // of the node that the job may use, whatever its ranks are bound to
};
/// `on_gpu`: the GPUs compute, so that processors may be idle.
Finding judge_threads(const std::vector<NodeThreads>& nodes, bool on_gpu);

/// Bytes that a process may lock, by node; `unlimited` stands for no limit. `has_rdma`: by node, whether it has a network that
/// needs them.
inline constexpr double unlimited = -1;
Finding judge_locked_memory(const std::vector<std::string>& nodes, const std::vector<double>& limits,
                            const std::vector<bool>& has_rdma);

/// Bytes that are free in /dev/shm, by node, and the ranks there; free bytes are below 0 where there is none.
Finding judge_shared_memory(const std::vector<std::string>& nodes, const std::vector<double>& free_bytes,
                            const std::vector<std::size_t>& ranks, bool on_gpu);

/// What the nodes' clocks showed at about the same time, in seconds; they were read within `apart_s`.
Finding judge_clocks(const std::vector<std::string>& nodes, const std::vector<double>& clocks, double apart_s);

std::optional<Finding> check_processors(DoctorJob& job);
/// Also sets the number of threads of the kernels, as fsdp-train does.
std::optional<Finding> check_threads(DoctorJob& job);
std::optional<Finding> check_locked_memory(DoctorJob& job);
std::optional<Finding> check_shared_memory(DoctorJob& job);
std::optional<Finding> check_clocks(DoctorJob& job);

/// Whether this node has InfiniBand or another network of its kind.
bool node_has_rdma();

}  // namespace fsdp
