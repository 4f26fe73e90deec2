// The ranks as a grid: shard axis x replicate axis. The ranks of a shard group are consecutive, so that they share a node if
// possible.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/backend.hpp"

namespace fsdp {

enum class GroupAxis { shard, replicate, world };

struct Mesh {
  std::unique_ptr<Communicator> shard;      // ranks that together hold one copy of the model
  std::unique_ptr<Communicator> replicate;  // ranks that hold the same shard
  Communicator* world = nullptr;            // all ranks
  /// The ranks of `shard` as a second group, for gathers that run during reductions; null if these never overlap.
  std::unique_ptr<Communicator> gather = nullptr;
  Communicator& along(GroupAxis axis) const;

  /// The collectives for the device's memory: the groups themselves if they can access it, else those made by use_device().
  Collectives& data_along(GroupAxis axis) const;
  Collectives& data_of_gathers() const;
  /// Prepares the groups for memory of `device`, which must outlive the mesh. Memory that the host cannot access is moved by
  /// the backend of the row options.kind if every rank has its own device; else it is copied through host memory. Collective
  /// over world. Throws CollectiveError if a backend, or its order of sums, is requested but not available.
  void use_device(Device& device, const CommOptions& options = {});

  /// "NCCL 2.28.9, sums in canonical order", for GPU memory; empty if the groups themselves can access the memory.
  std::string data_description = {};
  /// What the backend's communicators share; null without one. It outlives the collectives in `data`.
  std::unique_ptr<DeviceGroups> device_groups = nullptr;
  /// Indexed by axis, then that of `gather`; null if the host can access the memory.
  std::array<std::unique_ptr<Collectives>, 4> data = {};
};

/// World rank r is rank r % shard_size of shard group r / shard_size, and rank r / shard_size of its replicate group.
/// Collective over world, which must outlive the mesh and have shard_size * replicate_size ranks.
Mesh make_mesh(Communicator& world, int shard_size, int replicate_size);

}  // namespace fsdp
