// The ranks as a two-dimensional grid, as in hybrid sharding: one axis for sharding, one for replication. The ranks of a shard
// group are consecutive, so that they share a node if possible. Another axis is a name in GroupAxis, a number in MeshShape, a
// row in `mesh_axes` (mesh.cpp), and its number in mesh_shape() (plan/placement.hpp).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "comm/backend.hpp"

namespace fsdp {

/// `world` is last: the group of all ranks.
enum class GroupAxis { shard, replicate, world };
inline constexpr std::array group_axes = {GroupAxis::shard, GroupAxis::replicate, GroupAxis::world};

struct MeshShape {
  int shard = 1, replicate = 1;
};
std::string_view name_of(GroupAxis axis);

/// A rank's group along an axis: member k is rank base + k * stride, and the rank is member `index`.
struct GroupMembers {
  std::size_t size, index, base, stride;
  std::size_t member(std::size_t k) const { return base + k * stride; }
};
GroupMembers members_along(GroupAxis axis, MeshShape shape, std::size_t rank = 0);

/// The size of the largest sum along each axis, in bytes of the buffer.
using LargestSums = std::array<std::size_t, group_axes.size()>;
inline constexpr LargestSums unknown_sums = [] {
  LargestSums all{};
  all.fill(static_cast<std::size_t>(-1));
  return all;
}();

struct Mesh {
  MeshShape shape;
  Communicator* world = nullptr;                                               // all ranks
  std::array<std::unique_ptr<Communicator>, group_axes.size() - 1> axes = {};  // by GroupAxis, without world
  /// A second group of the ranks of shard(), so that all-gathers can run during reductions; null if all-gathers and reductions
  /// never overlap.
  std::unique_ptr<Communicator> gather = nullptr;
  /// A second group of all ranks, for layers that gather during their passes; null if collectives never overlap, or if
  /// no layer gathers.
  std::unique_ptr<Communicator> layers = nullptr;
  Communicator& along(GroupAxis axis) const {
    return axis == GroupAxis::world ? *world : *axes[static_cast<std::size_t>(axis)];
  }
  /// The ranks that together have one copy of the model.
  Communicator& shard() const { return along(GroupAxis::shard); }
  /// The ranks that have the same shard.
  Communicator& replicate() const { return along(GroupAxis::replicate); }

  /// Return the collectives on device memory. If the host can access that memory, they are the groups above, otherwise the
  /// members of `data`.
  Collectives& data_along(GroupAxis axis) const;
  Collectives& data_of_gathers() const;
  Collectives& data_of_layers() const;
  /// Prepares the groups for memory of `device`, which must outlive the mesh. If the host cannot access that memory and every
  /// rank has its own device, the device backend of options.kind (such as NCCL) moves the data; else the data is copied
  /// through host memory. Throws CollectiveError if options require a device backend, or the order of sums of its library, and
  /// the backend is not available. Groups need no more staging memory than their largest sums. `layers_gather`: see
  /// `layers`. Collective over world.
  void use_device(Device& device, const CommOptions& options = {}, const LargestSums& largest = unknown_sums,
                  bool layers_gather = false);

  /// How GPU memory is moved: "NCCL 2.28.9, sums in canonical order". Empty if the host can access the device's memory.
  std::string data_description = {};
  /// The data that the communicators of the device backend share; null without a device backend. Outlives `data`.
  std::unique_ptr<DeviceGroups> device_groups = nullptr;
  /// The collectives on device memory: first one for each GroupAxis, then those for `gather` and `layers`. All are null if
  /// the host can access device memory.
  std::array<std::unique_ptr<Collectives>, group_axes.size() + 2> data = {};
};

/// `world` must have shard_size * replicate_size ranks and must outlive the mesh. Collective over world.
Mesh make_mesh(Communicator& world, int shard_size, int replicate_size);

}  // namespace fsdp
