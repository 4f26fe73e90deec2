// The ranks as a two-dimensional grid, as in hybrid sharding: one axis for sharding, one for replication. The ranks of a shard
// group are consecutive, so that they share a node if possible.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/backend.hpp"

namespace fsdp {

enum class GroupAxis { shard, replicate, world };

struct Mesh {
  std::unique_ptr<Communicator> shard;      // the ranks that together have one copy of the model
  std::unique_ptr<Communicator> replicate;  // the ranks that have the same shard
  Communicator* world = nullptr;            // all ranks
  /// A second group of the ranks of `shard`, so that all-gathers can run during reductions; null if all-gathers and reductions
  /// never overlap.
  std::unique_ptr<Communicator> gather = nullptr;
  Communicator& along(GroupAxis axis) const;

  /// Return the collectives on device memory. If the host can access that memory, they are the groups above, otherwise the
  /// members of `data`.
  Collectives& data_along(GroupAxis axis) const;
  Collectives& data_of_gathers() const;
  /// Prepares the groups for memory of `device`, which must outlive the mesh. If the host cannot access that memory and every
  /// rank has its own device, the device backend of options.kind (such as NCCL) moves the data; else the data is copied
  /// through host memory. Throws CollectiveError if options require a device backend, or the order of sums of its library, and
  /// the backend is not available. Groups need no more staging memory than their largest sums. Collective over world.
  void use_device(Device& device, const CommOptions& options = {}, const LargestSums& largest = unknown_sums);

  /// How GPU memory is moved: "NCCL 2.28.9, sums in canonical order". Empty if the host can access the device's memory.
  std::string data_description = {};
  /// The data that the communicators of the device backend share; null without a device backend. Outlives `data`.
  std::unique_ptr<DeviceGroups> device_groups = nullptr;
  /// The collectives on device memory: first one for each GroupAxis, then one for `gather`. All are null if the host can
  /// access device memory.
  std::array<std::unique_ptr<Collectives>, 4> data = {};
};

/// World rank r is rank r % shard_size of shard group r / shard_size; in its replicate group it is rank r / shard_size. `world`
/// must have shard_size * replicate_size ranks and must outlive the mesh. Collective over world.
Mesh make_mesh(Communicator& world, int shard_size, int replicate_size);

}  // namespace fsdp
