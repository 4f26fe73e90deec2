// Checks of the GPUs that the ranks can use, and of NCCL.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// The GPUs that are visible to one rank (CUDA_VISIBLE_DEVICES).
struct RankGpus {
  std::size_t count = 0;
  std::string why_none = {};     // if there is none, the message of CUDA or of the loader
  std::string description = {};  // of the GPU that the rank uses
  std::string place = {};        // identifies that GPU on its node
};
/// Signs that a node without a usable GPU has a GPU. A text is empty if there is no such sign.
struct GpuTraces {
  std::string device_file = {};
  std::string driver = {};  // the version of the kernel module, "550.54.15"
};
/// `gpus` and `node_of` are indexed by rank; node_of[r] is an index in `nodes`.
Finding judge_gpus(const std::vector<std::string>& nodes, const std::vector<int>& node_of, const std::vector<RankGpus>& gpus,
                   const GpuTraces& traces);
/// `versions` and `problems` are indexed by node. A node has either the version of NCCL or a problem; the other is empty.
Finding judge_nccl(const std::vector<std::string>& nodes, const std::vector<std::string>& versions,
                   const std::vector<std::string>& problems);

/// If fsdp-train would use GPUs, also sets job.device to the rank's GPU.
std::optional<Finding> check_gpus(DoctorJob& job);
/// Returns no finding in a job without GPUs.
std::optional<Finding> check_nccl(DoctorJob& job);

}  // namespace fsdp
