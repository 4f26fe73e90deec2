#include "fsdp/traffic.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.hpp"
#include "kernels/exact_sum.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

/// The group of a rank: member k is rank base + k * stride.
struct Group {
  std::size_t size, index, base, stride;
  std::size_t member(std::size_t k) const { return base + k * stride; }
};

Group group_of(std::size_t rank, GroupAxis axis, MeshShape mesh) {
  const auto shards = static_cast<std::size_t>(mesh.shard), replicas = static_cast<std::size_t>(mesh.replicate);
  switch (axis) {
    case GroupAxis::shard:
      return {shards, rank % shards, rank / shards * shards, 1};
    case GroupAxis::replicate:
      return {replicas, rank / shards, rank % shards, shards};
    case GroupAxis::world:
      break;
  }
  return {shards * replicas, rank, 0, 1};
}

/// Members that are on the node of ranks [first, first + n): consecutive ones, since members are in order of ranks.
Range members_on_node(const Group& group, std::size_t first, std::size_t n) {
  const auto before = [&](std::size_t rank) {  // members whose rank is below
    return rank <= group.base ? 0 : std::min(group.size, (rank - group.base + group.stride - 1) / group.stride);
  };
  return {before(first), before(first + n)};
}

struct Sent {
  std::size_t near = 0, far = 0;  // elements
};

/// What one call makes the member `group.index` send to the members `near` and to the others.
Sent sent_by(const CollectiveUse& use, const Group& group, Range near) {
  const std::size_t neighbours = near.size() - 1, others = group.size - 1;
  if (use.kind != Collective::all_reduce) return {neighbours * use.count, (others - neighbours) * use.count};
  // The others' shares to their owners, then mine to the others.
  const std::size_t mine = share(use.count, group.size, group.index).size();
  const std::size_t begin = share(use.count, group.size, near.begin).begin,
                    end = share(use.count, group.size, near.end - 1).end;
  const std::size_t to_near = end - begin - mine + neighbours * mine, to_all = use.count - mine + others * mine;
  return {to_near, to_all - to_near};
}

}  // namespace

std::optional<CollectiveUse> collective_of(const Operation& op, const Layout& layout) {
  const auto use = [&](Collective kind, DType type) -> CollectiveUse {
    return {kind, op.group, layout.shard_numel(static_cast<std::size_t>(op.unit)), size_of(type), 1};
  };
  const auto types = [&] { return layout.units().at(static_cast<std::size_t>(op.unit)).types; };
  switch (op.kind) {
    case OperationKind::all_gather:
      return use(Collective::all_gather, types().parameter);
    case OperationKind::reduce_scatter:
      return use(Collective::reduce_scatter, types().reduce);
    case OperationKind::all_reduce:
      return use(Collective::all_reduce, types().reduce);
    case OperationKind::gather_directions:
      return use(Collective::all_gather, DType::f32);
    case OperationKind::scatter_directions:
      return use(Collective::reduce_scatter, DType::f32);
    case OperationKind::sum_directions:
      return use(Collective::all_reduce, DType::f32);
    default:
      return std::nullopt;
  }
}

std::vector<CollectiveUse> collectives_of_update(const std::vector<Operation>& operations, const Layout& layout,
                                                 std::size_t micro_batches) {
  const std::size_t planned = operations.empty() ? 1 : static_cast<std::size_t>(operations.back().micro_batch) + 1;
  expect(micro_batches == planned || (micro_batches > planned && planned >= 2),
         "a micro-batch that is not the last is planned");
  std::map<std::tuple<Collective, GroupAxis, std::size_t, std::size_t>, std::uint64_t> calls;
  for (const Operation& op : operations) {
    const std::uint64_t times = op.micro_batch == 0 ? micro_batches - planned + 1 : 1;
    if (op.kind == OperationKind::gradient_norm) {
      calls[{Collective::all_reduce, GroupAxis::shard, kernels::ExactSum::words, sizeof(std::int64_t)}] += times;
      calls[{Collective::all_reduce, GroupAxis::world, 1, sizeof(double)}] += times;
    }
    if (op.kind == OperationKind::reduce_statistics)
      calls[{Collective::all_reduce, GroupAxis::shard, layout.statistics_words(op.round), sizeof(std::int64_t)}] += times;
    if (const auto use = collective_of(op, layout)) calls[{use->kind, use->axis, use->count, use->element_bytes}] += times;
  }
  std::vector<CollectiveUse> uses;
  for (const auto& [key, n] : calls)
    uses.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), n});
  return uses;
}

RankTraffic traffic_of_rank(const std::vector<CollectiveUse>& uses, MeshShape mesh, Cluster cluster, int rank) {
  expect(mesh.shard * mesh.replicate == cluster.ranks() && rank >= 0 && rank < cluster.ranks(),
         "a mesh has as many places as the cluster has ranks");
  const auto me = static_cast<std::size_t>(rank), per_node = static_cast<std::size_t>(cluster.ranks_per_node);
  const std::size_t first = me / per_node * per_node;
  RankTraffic traffic;
  for (const CollectiveUse& use : uses) {
    const Group group = group_of(me, use.axis, mesh);
    const Sent sent = sent_by(use, group, members_on_node(group, first, per_node));
    const std::uint64_t bytes = use.calls * use.element_bytes;
    traffic.bytes_sent[static_cast<std::size_t>(use.kind)] += bytes * (sent.near + sent.far);
    traffic.within_node += bytes * sent.near;
    traffic.between_nodes += bytes * sent.far;
    const std::size_t next = group.member((group.index + 1) % group.size);
    if (next / per_node * per_node != first) traffic.ring_between_nodes += bytes * (sent.near + sent.far);
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

}  // namespace fsdp
