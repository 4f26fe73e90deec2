// The algebra of strategies: which of {parameters, gradients, optimizer state} are sharded, and when. A strategy is a row of
// this table and nothing else; the plan builder turns it into operations.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

enum class Place { sharded, whole };

/// Over which ranks the shard axis of the mesh goes; the replicate axis goes over the rest.
enum class ShardAxis { world, group, rank };

/// Where each kind of state lies over the shard axis. (Rajbhandari et al. 2020, "ZeRO", section 5; Zhao et al. 2023, "PyTorch
/// FSDP", section 3.2.)
struct Placement {
  std::string_view name;
  ShardAxis axis;
  Place parameters_at_rest;
  Place parameters_forward_to_backward;
  Place gradients_between_micro_batches;
  Place optimizer_state;
};

const std::deque<Placement>& placements();
/// Adds a row to the table, for a program of your own. Call it before anything else. The row stays for the life of the process;
/// its name must be new, and live as long.
void add_placement(const Placement& row);
/// Every name that is accepted, ours first, then PyTorch's, with our name for it.
std::vector<std::pair<std::string, std::string>> placement_names();
/// The row with this name. Throws UserError, which lists the names that there are, if there is none.
const Placement& find_placement(std::string_view name);

/// World size N as shard axis x replicate axis: N x 1, group_size x N / group_size, or 1 x N. Throws UserError if the group
/// does not divide the ranks.
struct MeshShape {
  int shard = 1, replicate = 1;
};
MeshShape mesh_shape(const Placement& placement, int world_size, int group_size = 1);

}  // namespace fsdp
