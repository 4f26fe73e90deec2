// How the ranks of a group are distributed over nodes, and how a group by nodes (nodes/) splits its sums: pure functions, used
// both by the communicators and by plans, which have no communicator.
#pragma once

#include <cstddef>
#include <span>

namespace fsdp {

/// How groups that span nodes communicate if they can choose: through each node once (nodes/), or from rank to rank.
enum class Between { nodes, ranks };

/// Returns the number of ranks on each node if all nodes have the same number of consecutive ranks, else 0. `nodes` has the
/// number of each rank's node.
int ranks_of_each_node(std::span<const int> nodes);

/// Returns true if `ranks_of_node` consecutive ranks are a whole subtree of the canonical order (communicator.hpp).
bool is_subtree(std::size_t ranks_of_node);

/// Returns how many elements of an all-reduce by nodes are cut into equal parts, one for each rank of a node. The others are
/// reduced uncut, first within each node and then between nodes: the remainder of the division, and all doubles and integers,
/// whose all-reduces are too small to gain from parts.
std::size_t elements_in_parts(std::size_t count, std::size_t element_bytes, std::size_t ranks_of_node);

}  // namespace fsdp
