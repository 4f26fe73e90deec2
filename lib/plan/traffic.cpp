#include "plan/traffic.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/kind.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

/// The members on the node with ranks [first, first + n). They are consecutive, because members are in rank order.
Range members_on_node(const GroupMembers& group, std::size_t first, std::size_t n) {
  const auto before = [&](std::size_t rank) {  // the number of members with a smaller rank
    return rank <= group.base ? 0 : std::min(group.size, (rank - group.base + group.stride - 1) / group.stride);
  };
  return {before(first), before(first + n)};
}

/// The number of members on each node that has members, if all these nodes have the same number; else 0. Returns the same as
/// ranks_of_each_node(), without a list of all members. If the stride does not divide the ranks of a node, the group spans the
/// cluster, and nodes have at most one member or different numbers. In both cases 0 is right, because callers treat 1 like 0.
std::size_t members_of_each_node(const GroupMembers& group, std::size_t per_node) {
  if (per_node % group.stride != 0) return 0;
  const auto node_of = [&](std::size_t k) { return group.member(k) / per_node; };
  const std::size_t last = group.size - 1, first_node = node_of(0), last_node = node_of(last);
  const std::size_t n = members_on_node(group, first_node * per_node, per_node).size();
  const bool same_on_last = members_on_node(group, last_node * per_node, per_node).size() == n;
  const bool same_between = last_node - first_node < 2 || n == per_node / group.stride;
  return same_on_last && same_between ? n : 0;
}

struct Sent {
  std::size_t intra_node = 0, inter_node = 0;  // bytes
  std::size_t total() const { return intra_node + inter_node; }
};

/// The bytes that a rank sends in an all-reduce by messages: first each other rank's share of the summands to that rank, then
/// the rank's own reduced share to all other ranks.
std::size_t sent_by_all_reduce(std::size_t count, std::size_t ranks, std::size_t rank, std::size_t reduce_bytes,
                               std::size_t element_bytes) {
  const std::size_t mine = share(count, ranks, rank).size();
  return (count - mine) * reduce_bytes + (ranks - 1) * mine * element_bytes;
}

/// The bytes that a rank sends in one call, in a group that communicates by nodes. The rank is number `place` of the group's
/// `of_each` ranks on node number `node`.
Sent sent_by_nodes(const CollectiveUse& use, std::size_t nodes, std::size_t node, std::size_t of_each, std::size_t place) {
  const std::size_t bytes = use.element_bytes, reduce_dtype = use.reduce_bytes;
  if (use.kind != Collective::all_reduce)
    return {nodes * (of_each - 1) * use.count * reduce_dtype, (nodes - 1) * use.count * bytes};
  const std::size_t parted = elements_in_parts(use.count, use.element_bytes, of_each), part = parted / of_each,
                    whole = use.count - parted;
  return {(of_each - 1) * part * (reduce_dtype + bytes) + sent_by_all_reduce(whole, of_each, place, reduce_dtype, bytes),
          sent_by_all_reduce(part, nodes, node, bytes, bytes) + sent_by_all_reduce(whole, nodes, node, bytes, bytes)};
}

/// The bytes that member `group.index` sends in one call, directly to the members `intra_node` on its node and to all others.
Sent sent_directly(const CollectiveUse& use, const GroupMembers& group, Range intra_node) {
  const std::size_t neighbours = intra_node.size() - 1, others = group.size - 1;
  const std::size_t bytes = use.element_bytes, reduce_dtype = use.reduce_bytes;
  if (use.kind != Collective::all_reduce)
    return {neighbours * use.count * reduce_dtype, (others - neighbours) * use.count * reduce_dtype};
  const std::size_t mine = share(use.count, group.size, group.index).size();
  const std::size_t begin = share(use.count, group.size, intra_node.begin).begin,
                    end = share(use.count, group.size, intra_node.end - 1).end;
  const std::size_t to_intra_node = (end - begin - mine) * reduce_dtype + neighbours * mine * bytes;
  return {to_intra_node, sent_by_all_reduce(use.count, group.size, group.index, reduce_dtype, bytes) - to_intra_node};
}

}  // namespace

std::optional<CollectiveUse> collective_of(const Operation& op) {
  if (!is_collective(op)) return std::nullopt;
  const Collective kind = *op.kind->collective;
  const DType reduce_dtype = kind == Collective::all_gather || op.type != DType::f32 ? op.type : op.reduce_dtype;
  return CollectiveUse{kind, op.group, op.count, size_of(op.type), size_of(reduce_dtype), 1};
}

Collectives& group_of(const Operation& op, const Mesh& mesh) {
  if (op.stream == StreamId::compute) return mesh.data_of_layers();
  return op.stream == StreamId::gather ? mesh.data_of_gathers() : mesh.data_along(op.group);
}

std::vector<const Operation*> collectives_of_plan(const Plan& plan) {
  std::vector<const Operation*> all;
  for (const auto* const list : lists_of(plan))
    for (const Operation& op : *list)
      if (is_collective(op)) all.push_back(&op);
  return all;
}

LargestSums largest_sums(const Plan& plan, MeshShape mesh) {
  LargestSums largest{};
  for (const Operation* const op : collectives_of_plan(plan)) {
    const CollectiveUse use = *collective_of(*op);
    std::size_t& of_axis = largest[static_cast<std::size_t>(use.axis)];
    if (use.kind != Collective::all_gather) of_axis = std::max(of_axis, use.buffer_bytes(members_along(use.axis, mesh).size));
  }
  return largest;
}

std::vector<CollectiveUse> collectives_of_update(const std::vector<Operation>& operations, std::size_t micro_batches) {
  const std::size_t planned = operations.empty() ? 1 : static_cast<std::size_t>(operations.back().micro_batch) + 1;
  expect(micro_batches == planned || (micro_batches > planned && planned >= 2),
         "the plan has a micro-batch before the last one");
  std::map<CollectiveUse, std::uint64_t> calls;
  for (const Operation& op : operations)
    if (const auto use = collective_of(op)) calls[*use] += op.micro_batch == 0 ? micro_batches - planned + 1 : 1;
  std::vector<CollectiveUse> uses;
  for (auto [use, n] : calls) uses.push_back(use), uses.back().calls = n;
  return uses;
}

RankTraffic traffic_of_rank(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster, int rank) {
  expect(mesh.shard * mesh.replicate == cluster.ranks() && rank >= 0 && rank < cluster.ranks(),
         "a mesh has as many places as the cluster has ranks");
  const auto me = static_cast<std::size_t>(rank), per_node = static_cast<std::size_t>(cluster.ranks_per_node);
  const std::size_t first = me / per_node * per_node;
  RankTraffic traffic;
  for (const CollectiveUse& use : uses) {
    const GroupMembers group = members_along(use.axis, mesh, me);
    const Range intra_node = members_on_node(group, first, per_node);
    const std::size_t of_each = members_of_each_node(group, per_node);
    const bool by_nodes = cluster.between == Between::nodes && of_each > 1 && of_each < group.size &&
                          (use.kind == Collective::all_gather || is_subtree(of_each));
    const Sent direct = sent_directly(use, group, intra_node);
    const Sent sent =
        by_nodes ? sent_by_nodes(use, group.size / of_each, group.index / of_each, of_each, group.index % of_each) : direct;
    traffic.bytes_sent[static_cast<std::size_t>(use.kind)] += use.calls * sent.total();
    traffic.within_node += use.calls * sent.intra_node;
    traffic.between_nodes += use.calls * sent.inter_node;
    const std::size_t next = group.member((group.index + 1) % group.size);
    if (next / per_node * per_node != first) traffic.ring_between_nodes += use.calls * direct.total();
  }
  return traffic;
}

ClusterTraffic traffic_of_cluster(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster) {
  ClusterTraffic most;
  const auto raise = [](std::uint64_t& to, std::uint64_t value) { to = std::max(to, value); };
  for (int node = 0; node < cluster.nodes; ++node) {
    std::uint64_t out = 0, ring_out = 0;
    for (int r = 0; r < cluster.ranks_per_node; ++r) {
      const RankTraffic traffic = traffic_of_rank(uses, mesh, cluster, node * cluster.ranks_per_node + r);
      for (std::size_t kind = 0; kind < collective_kinds; ++kind) raise(most.rank.bytes_sent[kind], traffic.bytes_sent[kind]);
      raise(most.rank.within_node, traffic.within_node);
      raise(most.rank.between_nodes, traffic.between_nodes);
      raise(most.rank.ring_between_nodes, traffic.ring_between_nodes);
      out += traffic.between_nodes;
      ring_out += traffic.ring_between_nodes;
    }
    raise(most.out_of_node, out);
    raise(most.ring_out_of_node, ring_out);
  }
  return most;
}

DiskTraffic disk_traffic(const Plan& plan) {
  DiskTraffic traffic;
  for (const Operation& op : plan.update)
    if (const Location* const kept = op.find(OperandName::stored))
      if (plan.buffers[static_cast<std::size_t>(kept->buffer)].space->tier == Tier::disk)
        (op.kind == &kinds::load ? traffic.read : traffic.written) += op.bytes();
  return traffic;
}

std::string describe_disk_traffic(const DiskTraffic& rank, int ranks, std::string_view node) {
  constexpr double rated = 600e12;  // bytes written: the rating of usual drives of 1 TB
  const auto of_node = [&](std::uint64_t bytes) { return static_cast<double>(bytes) * ranks; };
  const auto bytes = [](double n) {  // decimal units, as drives are rated
    const auto [unit, name] = n < 1e6    ? std::pair(1e3, "kB")
                              : n < 1e9  ? std::pair(1e6, "MB")
                              : n < 1e12 ? std::pair(1e9, "GB")
                                         : std::pair(1e12, "TB");
    return n < 100 * unit ? format("{:.3g} {}", n / unit, name) : format("{:.0f} {}", n / unit, name);
  };
  std::string text = format("an update reads {} from and writes {} to the disk of {}", bytes(of_node(rank.read)),
                            bytes(of_node(rank.written)), node);
  if (rank.written == 0) return text;
  const double updates = rated / of_node(rank.written), digit = std::pow(10, std::floor(std::log10(updates)) - 1);
  std::string number = format("{:.0f}", updates < 10 ? std::floor(updates) : std::round(updates / digit) * digit);
  for (std::size_t i = number.size(); i > 3; i -= 3) number.insert(i - 3, ",");
  return text + format("; a drive rated for {} written lasts {} updates", bytes(rated), number);
}

}  // namespace fsdp
