// The table of strategies: which of {parameters, gradients, optimizer state} are sharded, and when. A strategy is only a row of
// this table; the plan builder turns it into operations.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

enum class Place { sharded, whole };

/// The ranks along the shard axis of the mesh. The replicate axis covers the rest.
enum class ShardAxis { world, group, rank };

/// Which kinds of state are sharded along the shard axis. (Rajbhandari et al. 2020, "ZeRO", section 5; Zhao et al. 2023,
/// "PyTorch FSDP", section 3.2.)
struct Placement {
  std::string_view name;
  ShardAxis axis;
  Place parameters_at_rest;
  Place parameters_forward_to_backward;
  Place gradients_between_micro_batches;
  Place optimizer_state;
};

const std::deque<Placement>& placements();
/// Adds a row to the table, for a strategy of your own. Call it before anything else. The row stays until the process ends.
/// row.name must be new, and its memory must stay valid until then.
void add_placement(const Placement& row);
/// All accepted names, each with our name for the strategy: first our names, then PyTorch's.
std::vector<std::pair<std::string, std::string>> placement_names();
/// The row with this name. Throws UserError with a list of the names if there is none.
const Placement& find_placement(std::string_view name);

/// The mesh for a world of N ranks, as shard axis x replicate axis: N x 1, group_size x N / group_size, or 1 x N. mesh_shape()
/// throws UserError if the group size does not divide N.
struct MeshShape {
  int shard = 1, replicate = 1;
};
MeshShape mesh_shape(const Placement& placement, int world_size, int group_size = 1);

}  // namespace fsdp
