// Checks of each node and of the resources that the ranks may use: processors, threads, locked and shared memory, clocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// `instruction_sets` and `models` are indexed by node.
Finding judge_processors(const std::vector<std::string>& nodes, const std::vector<std::string>& instruction_sets,
                         const std::vector<std::string>& models);

/// The threads and processors of all ranks on a node.
struct NodeThreads {
  std::string node = {};
  std::size_t ranks = 1, threads = 1;
  std::size_t bound = 1;       // the number of processors on which at least one of the ranks may run
  std::size_t processors = 1;  // the number of processors of the node that the job may use, regardless of the ranks' binding
  std::size_t bound_cores = bound, cores = processors;  // the cores of these processors, which often have two processors each
  std::size_t asked = 0;                                // the processors that Slurm was asked for, for all ranks; 0: unknown
};
/// `on_gpu` is true if GPUs compute: idle processors are then normal.
Finding judge_threads(const std::vector<NodeThreads>& nodes, bool on_gpu);

/// `limits` and `has_rdma` are indexed by node. `limits` has the number of bytes that a process may lock, or the value
/// `unlimited`. `has_rdma` has true if the node's network needs locked memory.
inline constexpr double unlimited = -1;
Finding judge_locked_memory(const std::vector<std::string>& nodes, const std::vector<double>& limits,
                            const std::vector<bool>& has_rdma);

/// `free_bytes` has the free memory in /dev/shm of each node, negative if there is no /dev/shm; `ranks` has the number of ranks
/// of each node.
Finding judge_shared_memory(const std::vector<std::string>& nodes, const std::vector<double>& free_bytes,
                            const std::vector<std::size_t>& ranks, bool on_gpu);

/// `clocks` has the time on each node's clock, in seconds. The clocks were read within an interval of `apart_s` seconds.
Finding judge_clocks(const std::vector<std::string>& nodes, const std::vector<double>& clocks, double apart_s);

std::optional<Finding> check_processors(DoctorJob& job);
/// Also sets the number of threads of the kernels, as fsdp-train does.
std::optional<Finding> check_threads(DoctorJob& job);
std::optional<Finding> check_locked_memory(DoctorJob& job);
std::optional<Finding> check_shared_memory(DoctorJob& job);
std::optional<Finding> check_clocks(DoctorJob& job);

/// Returns true if this node has an active port of InfiniBand or a similar network.
bool node_has_rdma();

}  // namespace fsdp
