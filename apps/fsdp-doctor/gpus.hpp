// The GPUs that the ranks see, and NCCL.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// What a rank sees.
struct RankGpus {
  std::size_t count = 0;
  std::string why_none = {};     // in CUDA's words, or those of the loader
  std::string description = {};  // of the one that it takes, and where in its node that is
  std::string place = {};
};
/// What a node without a GPU that can be used has anyway: "/dev/nvidia0"; empty: nothing.
struct GpuTraces {
  std::string device_file = {};
  std::string driver = {};  // "550.54.15", of the kernel's module; empty: none
};
/// `gpus` by rank, `node_of` as in DoctorJob.
Finding judge_gpus(const std::vector<std::string>& nodes, const std::vector<int>& node_of, const std::vector<RankGpus>& gpus,
                   const GpuTraces& traces);
/// `versions` and `problems` by node; a version is empty where there is a problem.
Finding judge_nccl(const std::vector<std::string>& nodes, const std::vector<std::string>& versions,
                   const std::vector<std::string>& problems);

/// Also makes each rank's GPU the job's device, where fsdp-train would compute on it.
std::optional<Finding> check_gpus(DoctorJob& job);
/// Says nothing without GPUs.
std::optional<Finding> check_nccl(DoctorJob& job);

}  // namespace fsdp
