// How the ranks of a group are distributed over nodes, and how `nodes/` splits a sum into a sum within nodes and a sum between
// nodes. These are pure functions, because both the communicators and the plans, which have no communicator, use them.
#pragma once

#include <cstddef>
#include <span>

namespace fsdp {

/// How groups that span nodes communicate: within nodes first, then between them (`nodes/`), or directly from rank to rank.
enum class Between { nodes, ranks };

/// Returns the number of ranks on each node if all nodes have the same number of consecutive ranks, else 0. `nodes` has the
/// number of each rank's node.
int ranks_of_each_node(std::span<const int> nodes);

/// Returns true if the canonical order of sums (communicator.hpp) first adds up the `ranks_of_node` ranks of each node, as a
/// whole subtree of its binary tree.
bool is_subtree(std::size_t ranks_of_node);

/// Returns how many elements of an all-reduce by `nodes/` are cut into equal parts, one for each rank of a node. Elements that
/// are not cut are all-reduced within each node, then between nodes. These are the remainder of the division, and all doubles
/// and 64-bit integers, whose all-reduces are too small to gain from cutting.
std::size_t elements_in_parts(std::size_t count, std::size_t element_bytes, std::size_t ranks_of_node);

}  // namespace fsdp
