#include "fsdp/placement.hpp"

#include <array>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr Place S = Place::sharded, W = Place::whole;
using enum ShardAxis;

// clang-format off
//                                      name              sharded  parameters          gradients      optimizer
//                                                        over     at rest  forward    between        state
//                                                                          to         micro-batches
//                                                                          backward
constexpr std::array table = {Placement{"full",           world,   S,       S,         S,             S},
                              Placement{"grad-op",        world,   S,       W,         S,             S},
                              Placement{"optim",          world,   W,       W,         W,             S},
                              Placement{"none",           rank,    W,       W,         W,             W},
                              Placement{"hybrid",         group,   S,       S,         S,             S},
                              Placement{"hybrid-grad-op", group,   S,       W,         S,             S}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> pytorch_names = {{
    {"FULL_SHARD", "full"}, {"SHARD_GRAD_OP", "grad-op"}, {"NO_SHARD", "none"},
    {"HYBRID_SHARD", "hybrid"}, {"_HYBRID_SHARD_ZERO2", "hybrid-grad-op"}}};
// clang-format on

}  // namespace

std::span<const Placement> placements() { return table; }

std::vector<std::pair<std::string, std::string>> placement_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Placement& row : table) names.emplace_back(row.name, row.name);
  names.insert(names.end(), pytorch_names.begin(), pytorch_names.end());
  return names;
}

const Placement& find_placement(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [theirs, ours] : placement_names()) {
    if (name == theirs)
      for (const Placement& row : table)
        if (row.name == ours) return row;
    known.push_back(theirs);
  }
  throw UserError(format("there is no sharding strategy '{}' (known are {}) choose one of them", name, fmt::join(known, ", ")));
}

MeshShape mesh_shape(const Placement& placement, int world_size, int group_size) {
  const int shard = placement.axis == world ? world_size : placement.axis == rank ? 1 : group_size;
  if (shard < 1 || world_size % shard != 0)
    throw UserError(
        format("groups of {} do not divide {} ranks (every group holds one copy of the model) choose another "
               "`shard group size` or number of ranks",
               shard, world_size));
  return {shard, world_size / shard};
}

}  // namespace fsdp
