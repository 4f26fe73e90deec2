#include "plan/placement.hpp"

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
constexpr Placement ours[] =           {{"full",           world,   S,       S,         S,             S},
                                        {"grad-op",        world,   S,       W,         S,             S},
                                        {"optim",          world,   W,       W,         W,             S},
                                        {"none",           rank,    W,       W,         W,             W},
                                        {"hybrid",         group,   S,       S,         S,             S},
                                        {"hybrid-grad-op", group,   S,       W,         S,             S}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> pytorch_names = {{
    {"FULL_SHARD", "full"}, {"SHARD_GRAD_OP", "grad-op"}, {"NO_SHARD", "none"},
    {"HYBRID_SHARD", "hybrid"}, {"_HYBRID_SHARD_ZERO2", "hybrid-grad-op"}}};
// clang-format on

/// A deque, so that references to rows stay valid when a row is added.
std::deque<Placement>& table() {
  static std::deque<Placement> rows(std::begin(ours), std::end(ours));
  return rows;
}

}  // namespace

const std::deque<Placement>& placements() { return table(); }

void add_placement(const Placement& row) {
  for (const auto& [theirs, name] : placement_names())
    expect(row.name != theirs && row.name != name, "the name of an added strategy is new");
  expect(row.axis == ShardAxis::rank || row.optimizer_state == S, "a strategy that shards anything shards the optimizer state");
  expect(row.axis != ShardAxis::rank || (row.parameters_at_rest == W && row.gradients_between_micro_batches == W),
         "a strategy without shard groups keeps parameters and gradients whole");
  table().push_back(row);
}

std::vector<std::pair<std::string, std::string>> placement_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Placement& row : table()) names.emplace_back(row.name, row.name);
  names.insert(names.end(), pytorch_names.begin(), pytorch_names.end());
  return names;
}

const Placement& find_placement(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [theirs, mine] : placement_names()) {
    if (name == theirs)
      for (const Placement& row : table())
        if (row.name == mine) return row;
    known.push_back(theirs);
  }
  throw UserError(
      format("there is no sharding strategy '{}' (known are {}); choose one of them", name, fmt::join(known, ", ")));
}

MeshShape mesh_shape(const Placement& placement, int world_size, int group_size) {
  const int shard = placement.axis == world ? world_size : placement.axis == rank ? 1 : group_size;
  if (shard < 1 || world_size % shard != 0)
    throw UserError(
        format("shard groups of {} ranks do not divide {} ranks (each group holds one copy of the model); choose another "
               "`shard group size` or number of ranks",
               shard, world_size));
  return {shard, world_size / shard};
}

}  // namespace fsdp
