// How the ranks of a group lie on nodes, and how a group that goes by nodes (nodes/) cuts its sums: pure functions, which the
// communicators and those who plan without any ask alike.
#pragma once

#include <cstddef>
#include <span>

namespace fsdp {

/// How groups that span nodes communicate, where they may choose: through each node once (nodes/), or from rank to rank.
enum class Between { nodes, ranks };

/// How many ranks each node has, if all have the same number of consecutive ones, else 0. `nodes` has the number of each rank's
/// node.
int ranks_of_each_node(std::span<const int> nodes);

/// Whether a node of so many ranks is a whole subtree of the canonical order (communicator.hpp), wherever it begins.
bool is_subtree(std::size_t ranks_of_node);

/// How many elements of an all-reduce by nodes are cut into equal parts, one for each rank of a node. The others go whole,
/// first through each node and then between nodes: what cannot be cut evenly, and doubles and integers, whose sums are too
/// small to gain.
std::size_t elements_in_parts(std::size_t count, std::size_t element_bytes, std::size_t ranks_of_node);

}  // namespace fsdp
