// Groups whose collectives move no data and return at once. They serve to measure a training step without communication.
#pragma once

#include "comm/member.hpp"
#include "comm/mesh.hpp"

namespace fsdp {

class SilentCommunicator final : public GroupMember {
 public:
  /// The caller is rank `rank` of `size`; the other ranks need not exist.
  SilentCommunicator(int rank, int size) : GroupMember(rank, size) {}
  std::string description() const override { return "no communication"; }
  using Communicator::all_reduce;
  void all_gather(Stream&, const void*, void*, std::size_t, DType) override {}
  void reduce_scatter(Stream&, float*, float*, std::size_t, Into, DType) override {}
  void all_reduce(Stream&, float*, std::size_t, DType) override {}
  void all_reduce(Stream&, double*, std::size_t) override {}
  void all_reduce(Stream&, std::int64_t*, std::size_t) override {}
  void broadcast(void*, std::size_t, int) override {}
  void barrier() override {}
  std::size_t staging_bytes() const override { return 0; }
  /// Returns a group of one: a silent group does not know the colors of other ranks.
  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<SilentCommunicator>(0, 1); }
  std::unique_ptr<Communicator> split_by_node() override { return std::make_unique<SilentCommunicator>(0, 1); }
  void abort() noexcept override {}
};

/// The groups of a mesh, all silent, with the shape and the ranks of `like`.
struct SilentMesh {
  explicit SilentMesh(const Mesh& like) : world(like.world->rank(), like.world->size()) {
    mesh.shape = like.shape, mesh.world = &world;
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
      mesh.axes[axis] = std::make_unique<SilentCommunicator>(like.axes[axis]->rank(), like.axes[axis]->size());
  }
  SilentMesh(const SilentMesh&) = delete;
  SilentCommunicator world;
  Mesh mesh;
};

}  // namespace fsdp
