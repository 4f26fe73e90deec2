#include "fsdp/placement.hpp"

#include <array>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr Place S = Place::sharded, W = Place::whole;

// clang-format off
//                                      name    at rest  forward to   gradients between  optimizer
//                                                       backward     micro-batches      state
constexpr std::array table = {Placement{"full", S,       S,           S,                 S},
                              Placement{"none", W,       W,           W,                 W}};
// clang-format on

constexpr std::array<std::pair<std::string_view, std::string_view>, 2> pytorch_names = {
    {{"FULL_SHARD", "full"}, {"NO_SHARD", "none"}}};

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

MeshShape mesh_shape(const Placement& placement, int world_size) {
  return placement.optimizer_state == Place::sharded ? MeshShape{world_size, 1} : MeshShape{1, world_size};
}

}  // namespace fsdp
