#include "comm/mesh.hpp"

#include "base/error.hpp"
#include "comm/staged.hpp"

namespace fsdp {

Communicator& Mesh::along(GroupAxis axis) const {
  return axis == GroupAxis::shard ? *shard : axis == GroupAxis::replicate ? *replicate : *world;
}

namespace {

constexpr std::size_t gathers = 3;  // behind the axes

}  // namespace

Collectives& Mesh::data_along(GroupAxis axis) const {
  const auto& beside = staged[static_cast<std::size_t>(axis)];
  return beside ? *beside : static_cast<Collectives&>(along(axis));
}

Collectives& Mesh::data_of_gathers() const {
  if (staged[gathers]) return *staged[gathers];
  return gather ? static_cast<Collectives&>(*gather) : data_along(GroupAxis::shard);
}

void Mesh::use_device(Device& device) {
  if (device.communicates_at_once()) gather = shard->split(0, shard->rank());
  if (device.kind() == DeviceKind::cpu) return;
  for (const GroupAxis axis : {GroupAxis::shard, GroupAxis::replicate, GroupAxis::world})
    staged[static_cast<std::size_t>(axis)] = make_staged(along(axis), device);
  if (gather) staged[gathers] = make_staged(*gather, device);
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
