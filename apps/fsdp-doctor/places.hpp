// Checks of where ranks, GPUs and network links are on a node, and of the network that NCCL chose between nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// A rank's place on its node. NUMA nodes are as in machine/node_places.hpp: -1 means unknown, several, or the only one.
struct RankPlace {
  int numa = -1;
  std::string gpu;  // Device::place(): "0000:3b:00"
  int gpu_numa = -1;
  std::string links;  // on the GPU's NUMA node: "mlx5_0, mlx5_1"; empty: none, or unknown
};
/// `places` and `node_of` are indexed by rank; node_of[r] is an index in `nodes`.
Finding judge_places(const std::vector<std::string>& nodes, const std::vector<int>& node_of,
                     const std::vector<RankPlace>& places);

/// What NCCL does on a node: bytes per second that the node sends in an all-gather of all nodes, the links' figures, and what
/// to do (advise_network()).
struct NodeNccl {
  double rate = 0, link_rate = 0;  // link_rate 0: unknown
  std::string links;               // "4 x 25 GB/s"
  std::string advice;
};
/// `network` is DeviceGroups::network.
Finding judge_nccl_network(const std::vector<std::string>& nodes, const std::string& network,
                           const std::vector<NodeNccl>& nccl);

/// Returns no finding in a job without GPUs.
std::optional<Finding> check_places(DoctorJob& job);
/// Returns no finding in a job of one node, or whose GPUs are not connected by NCCL.
std::optional<Finding> check_nccl_network(DoctorJob& job);

}  // namespace fsdp
