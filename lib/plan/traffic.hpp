// The bytes that the collectives of a list of operations move, as the communicators would count them during the run
// (Communicator::traffic()), split into bytes within a node and between nodes.
//
// Ranks are consecutive on nodes. A group with the same number of ranks on each of several nodes communicates by nodes
// (comm/nodes/): a rank sends a shard to each other node once, and the ranks of a node forward what they receive (all-gather)
// or add up what they send (reduce-scatter). Any other group, and every group if all communication is by messages, sends
// directly from rank to rank. In an all-gather a rank sends its shard to each other rank. In a reduce-scatter a rank sends to
// each other rank the part that the receiver reduces. An all-reduce is both. In a ring (NCCL for large buffers) a rank sends as
// many bytes, but only to the next rank, so that each group has only one rank per node that sends to another node. Both counts
// are computed. GPUs use NCCL's rings for all-gathers, and for sums in the library's order. Sums in canonical order are
// computed by nodes or directly, as on CPUs.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh.hpp"
#include "comm/topology.hpp"
#include "plan/layout.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

struct Cluster {
  int nodes = 1, ranks_per_node = 1;
  Between between = Between::nodes;
  SumOrder sum_order = SumOrder::canonical;  // of GPUs: the library's order uses rings
  int ranks() const { return nodes * ranks_per_node; }
};

/// A collective of an update, and how often it is called with these sizes.
struct CollectiveUse {
  Collective kind;
  GroupAxis axis;
  std::size_t count;  // elements: of a shard in all-gather and reduce-scatter, of the buffer in all-reduce
  std::size_t element_bytes;
  std::size_t reduce_bytes;  // of an element that is sent to be summed; smaller if it is rounded before
  std::uint64_t calls;

  auto operator<=>(const CollectiveUse&) const = default;
  /// The bytes of the whole buffer that a group of `ranks` ranks gathers or reduces.
  std::size_t whole_bytes(std::size_t ranks) const {
    return count * reduce_bytes * (kind == Collective::all_reduce ? 1 : ranks);
  }
  /// The bytes of this buffer in memory, in the type of its elements.
  std::size_t buffer_bytes(std::size_t ranks) const {
    return count * element_bytes * (kind == Collective::all_reduce ? 1 : ranks);
  }
  /// The bytes that a group's ranks exchange: in an all-reduce those of the summands and those of the sums.
  std::size_t moved_bytes(std::size_t ranks) const {
    return kind == Collective::all_reduce ? count * (reduce_bytes + element_bytes) : whole_bytes(ranks);
  }
  /// The approximate bytes that each rank sends.
  std::size_t sent_bytes(std::size_t ranks) const { return (ranks - 1) * moved_bytes(ranks) / ranks; }
  /// The bytes of host memory for staging device memory: the whole buffer and, in a reduce-scatter, this rank's part.
  std::size_t staging_bytes(std::size_t ranks) const {
    if (kind == Collective::all_reduce && ranks == 1 && reduce_bytes == element_bytes) return 0;
    return buffer_bytes(ranks) + (kind == Collective::reduce_scatter ? count * element_bytes : 0);
  }
};
/// The collective of one operation, with one call; nothing if the operation is not a collective.
std::optional<CollectiveUse> collective_of(const Operation& op);
/// The collectives on device memory that the operation uses.
Collectives& group_of(const Operation& op, const Mesh& mesh);
/// All collectives of the plan's lists.
std::vector<const Operation*> collectives_of_plan(const Plan& plan);
/// The largest sum over each mesh axis, which determines the staging memory of that axis's group.
LargestSums largest_sums(const Plan& plan, MeshShape mesh);
/// The collectives of an update with `micro_batches` micro-batches. `operations` may have fewer micro-batches, but at least
/// two, because all micro-batches but the last are alike.
std::vector<CollectiveUse> collectives_of_update(const std::vector<Operation>& operations, std::size_t micro_batches);

struct RankTraffic {
  std::array<std::uint64_t, collective_kinds> bytes_sent{};
  std::uint64_t within_node = 0, between_nodes = 0;  // together as many as in bytes_sent
  std::uint64_t ring_between_nodes = 0;              // bytes between nodes if all groups used rings
  std::uint64_t total() const { return within_node + between_nodes; }
  bool operator==(const RankTraffic&) const = default;
};
RankTraffic traffic_of_rank(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster, int rank);

/// The largest numbers of bytes that any rank, and any node, sends.
struct ClusterTraffic {
  RankTraffic rank;  // the maximum over ranks of each number
  std::uint64_t out_of_node = 0, ring_out_of_node = 0;
  bool operator==(const ClusterTraffic&) const = default;
};
ClusterTraffic traffic_of_cluster(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster);

/// What each rank's loads and unloads of state on Tier::disk read and write in an update with as many micro-batches as the plan
/// has.
DiskTraffic disk_traffic(const Plan& plan);
/// "an update reads 96.4 GB from and writes 96.4 GB to the disk of this node; a drive rated for 600 TB written lasts 6,200
/// updates". `rank` is the traffic of one of the node's `ranks` ranks, which all have the same. `node` is "this node" or "a
/// node".
std::string describe_disk_traffic(const DiskTraffic& rank, int ranks, std::string_view node);

}  // namespace fsdp
