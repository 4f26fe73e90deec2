// Checks of the GPUs that the ranks see, and of NCCL.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// The GPUs that one rank sees.
struct RankGpus {
  std::size_t count = 0;
  std::string why_none = {};     // the message of CUDA or of the loader
  std::string description = {};  // of the GPU that the rank uses
  std::string place = {};
};
/// Signs of a GPU on a node without a usable GPU; empty: none.
struct GpuTraces {
  std::string device_file = {};
  std::string driver = {};  // of the kernel module, such as "550.54.15"; empty: none
};
/// `gpus` is indexed by rank; `node_of` as in DoctorJob.
Finding judge_gpus(const std::vector<std::string>& nodes, const std::vector<int>& node_of, const std::vector<RankGpus>& gpus,
                   const GpuTraces& traces);
/// `versions` and `problems` are indexed by node; a version is empty if there is a problem.
Finding judge_nccl(const std::vector<std::string>& nodes, const std::vector<std::string>& versions,
                   const std::vector<std::string>& problems);

/// Also makes each rank's GPU the job's device, if fsdp-train would use it.
std::optional<Finding> check_gpus(DoctorJob& job);
/// Reports nothing without GPUs.
std::optional<Finding> check_nccl(DoctorJob& job);

}  // namespace fsdp
