#include "comm/mesh.hpp"

#include "base/error.hpp"

namespace fsdp {

Communicator& Mesh::along(GroupAxis axis) const {
  return axis == GroupAxis::shard ? *shard : axis == GroupAxis::replicate ? *replicate : *world;
}

Mesh make_mesh(Communicator& world, int shard_size, int replicate_size) {
  expect(shard_size > 0 && replicate_size > 0 && shard_size * replicate_size == world.size(),
         "a mesh has as many places as ranks");
  const int replica = world.rank() / shard_size, shard = world.rank() % shard_size;
  Mesh mesh;
  mesh.shard = world.split(replica, shard);
  mesh.replicate = world.split(shard, replica);
  mesh.world = &world;
  return mesh;
}

}  // namespace fsdp
