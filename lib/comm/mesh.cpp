#include "comm/mesh.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "comm/staged.hpp"

namespace fsdp {

namespace {

struct Axis {
  std::string_view name;
  /// The group of `rank` in a grid of s x r ranks.
  GroupMembers (*members)(std::size_t s, std::size_t r, std::size_t rank);
};

constexpr std::array<Axis, group_axes.size()> mesh_axes = {{
    {"shard",
     [](std::size_t s, std::size_t, std::size_t rank) {
       return GroupMembers{s, rank % s, rank / s * s, 1};
     }},
    {"replicate",
     [](std::size_t s, std::size_t r, std::size_t rank) {
       return GroupMembers{r, rank / s, rank % s, s};
     }},
    {"world",
     [](std::size_t s, std::size_t r, std::size_t rank) {
       return GroupMembers{s * r, rank, 0, 1};
     }},
}};
const Axis& row_of(GroupAxis axis) { return mesh_axes[static_cast<std::size_t>(axis)]; }

}  // namespace

std::string_view name_of(GroupAxis axis) { return row_of(axis).name; }

GroupMembers members_along(GroupAxis axis, MeshShape shape, std::size_t rank) {
  return row_of(axis).members(static_cast<std::size_t>(shape.shard), static_cast<std::size_t>(shape.replicate), rank);
}

namespace {

constexpr std::size_t gathers = group_axes.size(), in_layers = gathers + 1;  // indices in `data`: of `gather` and `layers`

/// Returns why the backend cannot connect these ranks; empty if it can. The result is the same on all ranks. Collective.
std::string problem_of(const DeviceBackend& backend, Communicator& world, const Device& device, const DeviceLibrary* library,
                       const std::string& why) {
  // A device is identified by the number of its machine and its address there (Device::place()). The number of a machine is
  // the lowest rank that runs on it.
  std::int64_t machine = world.rank();
  world.split_by_node()->broadcast(&machine, sizeof machine, 0);
  // With FSDP_NCCL_SHARED_GPU, which tests set, each rank counts as having its own GPU, and NCCL decides.
  const std::string owner = std::getenv("FSDP_NCCL_SHARED_GPU") ? format(" of rank {}", world.rank()) : "";
  const auto places = world.gather(format("{} {}{}", machine, device.place(), owner));
  const auto versions = world.gather(library ? library->version() : "none: " + why);
  for (std::size_t r = 0; r < places.size(); ++r) {
    const auto first = static_cast<std::size_t>(std::find(places.begin(), places.end(), places[r]) - places.begin());
    if (first < r) return format("ranks {} and {} share a GPU", first, r);
  }
  for (std::size_t r = 0; r < versions.size(); ++r) {
    if (versions[r].starts_with("none: ")) return format("rank {} has no {}: {}", r, backend.name, versions[r].substr(6));
    if (versions[r] != versions[0])
      return format("rank 0 has {} {} and rank {} has {}, which cannot be mixed", backend.name, versions[0], r, versions[r]);
  }
  return {};
}

}  // namespace

Collectives& Mesh::data_along(GroupAxis axis) const {
  const auto& beside = data[static_cast<std::size_t>(axis)];
  return beside ? *beside : static_cast<Collectives&>(along(axis));
}

Collectives& Mesh::data_of_gathers() const {
  if (data[gathers]) return *data[gathers];
  return gather ? static_cast<Collectives&>(*gather) : data_along(GroupAxis::shard);
}

Collectives& Mesh::data_of_layers() const {
  if (data[in_layers]) return *data[in_layers];
  return layers ? static_cast<Collectives&>(*layers) : data_along(GroupAxis::world);
}

void Mesh::use_device(Device& device, const CommOptions& options, const LargestSums& largest, bool layers_gather) {
  if (device.communicates_at_once()) gather = shard().split(0, shard().rank());
  if (device.communicates_at_once() && layers_gather) layers = world->split(0, world->rank());
  const Backend& chosen = find_backend(options.kind);
  const DeviceBackend* const backend = chosen.device_backend;
  const bool on_gpu = !is_host(device.kind());
  std::string why_not = on_gpu ? "as requested" : "the ranks compute on CPUs, but it transfers only GPU memory";
  if (backend && backend->device == device.kind()) {
    std::string why;
    const DeviceLibrary* const library = backend->find(&why);
    why_not = problem_of(*backend, *world, device, library, why);
    if (why_not.empty()) {
      device_groups = library->connect(*world, device, {.sum_order = options.sum_order, .timeout_s = options.timeout_s});
      data_description = format("{} {}, sums in {} order", backend->name, library->version(),
                                options.sum_order == SumOrder::canonical ? "canonical" : "the library's");
      if (!device_groups->network.empty()) data_description += ", between nodes by " + device_groups->network;
    }
  }
  const auto refuse = [](const std::string& message) { throw CollectiveError(message, 0, true, exit_code::wrong_use); };
  if (!device_groups && chosen.device_backend_is_required)
    refuse(
        format("{0} cannot connect the ranks ({1}); start one rank for each GPU, all with the same libraries, or give "
               "`communication by messages`, which needs no {0}",
               backend->name, why_not));
  if (!device_groups && options.sum_order == SumOrder::library)
    refuse(
        "`sums in NCCL's order` changes nothing (NCCL does not connect these ranks); leave it out, or give each rank its own "
        "GPU");
  if (!on_gpu) return;
  if (!device_groups) data_description = format("through host memory ({})", why_not);
  const auto connect = [&](Communicator& group, std::size_t staging_bytes) {
    return device_groups ? device_groups->make(group, staging_bytes) : make_staged(group, device);
  };
  for (const GroupAxis axis : group_axes) {
    const auto a = static_cast<std::size_t>(axis);
    data[a] = connect(along(axis), staging_of_sums(options, largest[a], static_cast<std::size_t>(along(axis).size())));
  }
  if (gather) data[gathers] = connect(*gather, 0);
  if (layers) data[in_layers] = connect(*layers, 0);
}

Mesh make_mesh(Communicator& world, int shard_size, int replicate_size) {
  expect(shard_size > 0 && replicate_size > 0 && shard_size * replicate_size == world.size(),
         "a mesh has as many places as ranks");
  Mesh mesh{.shape = {shard_size, replicate_size}, .world = &world};
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const GroupMembers group = members_along(group_axes[axis], mesh.shape, static_cast<std::size_t>(world.rank()));
    mesh.axes[axis] = world.split(static_cast<int>(group.base), static_cast<int>(group.index));
  }
  return mesh;
}

}  // namespace fsdp
