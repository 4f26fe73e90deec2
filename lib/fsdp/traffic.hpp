// What the collectives of a list of operations move: counted from the list, as the communicators count it while it runs
// (Communicator::traffic()), and divided by whether it leaves the sender's node.
//
// How bytes go. Ranks are consecutive on nodes. A group that has as many ranks on each of several nodes goes by nodes
// (comm/nodes/): a rank sends a shard to each other node once, and a node's ranks send on what comes in, or add up what goes
// out. Elsewhere, and where all goes by messages, a rank sends each other rank of the group what that one needs: its shard in
// an all-gather, the other one's share in a reduce-scatter; an all-reduce is both. A ring (NCCL's, on large buffers) sends as
// many bytes per rank, but each rank to the next one alone: from a node only one stream per group goes out. Both are given.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/mesh.hpp"
#include "comm/topology.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

struct Cluster {
  int nodes = 1, ranks_per_node = 1;
  Between between = Between::nodes;
  int ranks() const { return nodes * ranks_per_node; }
};

/// Equal collectives of an update.
struct CollectiveUse {
  Collective kind;
  GroupAxis axis;
  std::size_t count;  // elements: of a shard in all-gather and reduce-scatter, of the buffer in all-reduce
  std::size_t element_bytes;
  std::size_t travel_bytes;  // of an element that is still to be added up: less if it is rounded on its way
  std::uint64_t calls;

  auto operator<=>(const CollectiveUse&) const = default;
  /// Of the whole: what a group of so many ranks makes or adds up.
  std::size_t whole_bytes(std::size_t ranks) const {
    return count * travel_bytes * (kind == Collective::all_reduce ? 1 : ranks);
  }
  /// What goes between the ranks of a group, both ways of an all-reduce.
  std::size_t moved_bytes(std::size_t ranks) const {
    return kind == Collective::all_reduce ? count * (travel_bytes + element_bytes) : whole_bytes(ranks);
  }
  /// About what each rank sends.
  std::size_t sent_bytes(std::size_t ranks) const { return (ranks - 1) * moved_bytes(ranks) / ranks; }
  /// Of the host's memory, if a device's memory goes through it: the whole and, in a reduce-scatter, this rank's part.
  std::size_t staging_bytes(std::size_t ranks) const {
    const std::size_t part = count * element_bytes;
    if (kind == Collective::all_reduce) return ranks > 1 || travel_bytes != element_bytes ? part : 0;
    return (kind == Collective::reduce_scatter ? ranks + 1 : ranks) * part;
  }
};
/// What an operation calls, once; nothing if it is not a collective.
std::optional<CollectiveUse> collective_of(const Operation& op);
/// The uses of an update of `micro_batches`, from the operations of one that may have fewer, but at least two: all
/// micro-batches but the last are alike.
std::vector<CollectiveUse> collectives_of_update(const std::vector<Operation>& operations, std::size_t micro_batches);

struct RankTraffic {
  std::array<std::uint64_t, collective_kinds> bytes_sent{};
  std::uint64_t within_node = 0, between_nodes = 0;  // of bytes_sent
  std::uint64_t ring_between_nodes = 0;              // if groups were rings
  std::uint64_t total() const { return within_node + between_nodes; }
  bool operator==(const RankTraffic&) const = default;
};
RankTraffic traffic_of_rank(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster, int rank);

/// The bytes of the rank, and of the node, that send most.
struct ClusterTraffic {
  RankTraffic rank;  // each number for itself
  std::uint64_t out_of_node = 0, ring_out_of_node = 0;
  bool operator==(const ClusterTraffic&) const = default;
};
ClusterTraffic traffic_of_cluster(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster);

}  // namespace fsdp
