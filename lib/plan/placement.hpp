// The table of strategies: which of {parameters, gradients, optimizer state} are sharded, and when. A strategy is only a row of
// this table; the plan builder turns it into operations.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/mesh.hpp"

namespace fsdp {

enum class Place { sharded, whole };

/// The size of the shard axis of the mesh: all ranks, a group of them, or one rank. The replicate axis has the other factor of
/// the world size.
enum class ShardAxis { world, group, rank };

/// A strategy: which kinds of state are sharded along the shard axis. (Rajbhandari et al. 2020, "ZeRO", section 5; Zhao et al.
/// 2023, "PyTorch FSDP", section 3.2.)
struct Placement {
  std::string_view name;
  ShardAxis axis;
  Place parameters_at_rest;
  Place parameters_forward_to_backward;
  Place gradients_between_micro_batches;
  Place optimizer_state;
};

const std::deque<Placement>& placements();
/// Adds a row to the table, for a strategy of your own. Call it before anything else. row.name must be new. The row, and the
/// memory that row.name points to, are used until the process ends.
void add_placement(const Placement& row);
/// Pairs of an accepted name and our name for the same strategy. Our names come first, then PyTorch's.
std::vector<std::pair<std::string, std::string>> placement_names();
/// The row with this name. Throws UserError with a list of the names if there is none.
const Placement& find_placement(std::string_view name);

/// The mesh for a world of N ranks, as shard axis x replicate axis: N x 1, group_size x N / group_size, or 1 x N. mesh_shape()
/// throws UserError if the group size does not divide N.
MeshShape mesh_shape(const Placement& placement, int world_size, int group_size = 1);

}  // namespace fsdp
