// The predicted traffic of collectives: by hand, by the rule of the communicators, and as groups that communicate by nodes
// count it.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "comm/topology.hpp"
#include "plan/traffic.hpp"
#include "support/by_nodes.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(what_leaves_a_node_adds_up) {
  // Groups with all divisions into nodes: 6 ranks on nodes of 1, 2, 3, 6; shard axis 1, 2, 3, 6.
  const std::vector<CollectiveUse> uses = {{Collective::all_gather, GroupAxis::shard, 80, 4, 4, 3},
                                           {Collective::reduce_scatter, GroupAxis::shard, 48, 4, 4, 1},
                                           {Collective::all_reduce, GroupAxis::replicate, 35, 4, 4, 2},
                                           {Collective::all_reduce, GroupAxis::world, 1, 8, 8, 1}};
  for (const int shard : {1, 2, 3, 6})
    for (const int per_node : {1, 2, 3, 6, -2, -3}) {  // less than zero: each rank to each other one
      const Cluster cluster = {6 / std::abs(per_node), std::abs(per_node), per_node < 0 ? Between::ranks : Between::nodes};
      const MeshShape mesh = {shard, 6 / shard};
      std::uint64_t between = 0, out = 0;
      for (int rank = 0; rank < 6; ++rank) {
        const RankTraffic t = traffic_of_rank(uses, mesh, cluster, rank);
        std::uint64_t total = 0;
        for (const std::uint64_t bytes : t.bytes_sent) total += bytes;
        BOOST_TEST(t.total() == total);
        BOOST_TEST(t.ring_between_nodes <= total + 4 * 4);  // rounding of the all-reduces
        if (per_node == 6) BOOST_TEST(t.between_nodes + t.ring_between_nodes == 0u);
        if (per_node == 1) BOOST_TEST(t.within_node == 0u);
        between += t.between_nodes;
        out = std::max(out, t.between_nodes);
      }
      const ClusterTraffic all_of_it = traffic_of_cluster(uses, mesh, cluster);
      BOOST_TEST(all_of_it.out_of_node * static_cast<std::uint64_t>(cluster.nodes) >= between);
      BOOST_TEST(all_of_it.rank.between_nodes == out);
    }
}

BOOST_AUTO_TEST_CASE(groups_that_nodes_cut) {
  // Shard groups {0 1 2} {3 4 5} on nodes {0 1} {2 3} {4 5}; an all-gather of shards of 10 bytes.
  const std::vector<CollectiveUse> uses = {{Collective::all_gather, GroupAxis::shard, 10, 1, 1, 1}};
  const std::array<std::uint64_t, 6> within = {10, 10, 0, 0, 10, 10}, between = {10, 10, 20, 20, 10, 10};
  for (int rank = 0; rank < 6; ++rank) {
    const RankTraffic t = traffic_of_rank(uses, {3, 2}, {3, 2}, rank);
    BOOST_TEST(t.within_node == within[static_cast<std::size_t>(rank)]);
    BOOST_TEST(t.between_nodes == between[static_cast<std::size_t>(rank)]);
    // 0 -> 1 -> 2 -> 0 and 3 -> 4 -> 5 -> 3
    BOOST_TEST(t.ring_between_nodes == (rank == 0 || rank == 4 ? 0u : 20u));
  }
  BOOST_TEST(traffic_of_cluster(uses, {3, 2}, {3, 2}).out_of_node == 40u);
}

BOOST_AUTO_TEST_CASE(which_groups_go_by_nodes_is_predicted) {
  // Compares with the rule of the communicators, which checks every rank of a group, for all meshes on small clusters.
  const std::vector<std::vector<CollectiveUse>> one_of_each = {{{Collective::all_gather, GroupAxis::shard, 1, 1, 1, 1}},
                                                               {{Collective::all_gather, GroupAxis::replicate, 1, 1, 1, 1}},
                                                               {{Collective::all_gather, GroupAxis::world, 1, 1, 1, 1}}};
  std::size_t by_nodes = 0;
  for (int ranks = 1; ranks <= 24; ++ranks)
    for (int per_node = 1; per_node <= ranks; ++per_node)
      for (int shard = 1; shard <= ranks; ++shard) {
        if (ranks % per_node != 0 || ranks % shard != 0) continue;
        for (int me = 0; me < ranks; ++me)
          for (const std::vector<CollectiveUse>& use : one_of_each) {
            std::vector<int> nodes;
            for (int r = 0; r < ranks; ++r)
              if (use[0].axis == GroupAxis::world || (use[0].axis == GroupAxis::shard && r / shard == me / shard) ||
                  (use[0].axis == GroupAxis::replicate && r % shard == me % shard))
                nodes.push_back(r / per_node);
            const auto here = static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), me / per_node));
            const auto of_each = static_cast<std::uint64_t>(ranks_of_each_node(nodes));
            const RankTraffic found = traffic_of_rank(use, {shard, ranks / shard}, {ranks / per_node, per_node}, me);
            by_nodes += of_each > 1 && of_each < nodes.size();
            const std::uint64_t expected = of_each > 1 ? nodes.size() / of_each - 1 : nodes.size() - here;
            if (found.between_nodes != expected || found.total() != nodes.size() - 1)
              BOOST_ERROR(ranks << " ranks, " << per_node << " per node, shard axis " << shard << ", rank " << me << ": "
                                << found.between_nodes << " instead of " << expected);
          }
      }
  BOOST_TEST(by_nodes > 1000u);
}

BOOST_AUTO_TEST_CASE(groups_by_nodes_send_what_is_predicted) {
  for (const auto& [nodes, of_each] : std::vector<std::pair<int, int>>{{2, 2}, {3, 2}, {2, 3}, {3, 4}, {2, 8}}) {
    const Cluster cluster = {nodes, of_each};
    run_ranks(cluster.ranks(), [&, of_ranks = of_each](Communicator& world) {
      const auto group = by_nodes(world, of_ranks);
      const auto stream = make_host_stream();
      const auto sent_by = [](const Communicator& comm) {
        const auto& bytes = comm.traffic().bytes_sent;
        return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
      };
      for (const std::size_t count : {0, 1, 2, 3, 7, 35, 1000}) {
        std::vector<float> whole(count * static_cast<std::size_t>(world.size())), shard(count);
        std::vector<double> sums(count);
        const std::vector<std::pair<CollectiveUse, std::function<void()>>> calls = {
            {{Collective::all_gather, GroupAxis::world, count, 4, 4, 1},
             [&] { group->all_gather(*stream, shard.data(), whole.data(), count, DType::f32); }},
            {{Collective::reduce_scatter, GroupAxis::world, count, 4, 4, 1},
             [&] { group->reduce_scatter(*stream, whole.data(), shard.data(), count, Into::overwrite, DType::f32); }},
            {{Collective::reduce_scatter, GroupAxis::world, count, 4, 2, 1},
             [&] { group->reduce_scatter(*stream, whole.data(), shard.data(), count, Into::overwrite, DType::bf16); }},
            {{Collective::all_reduce, GroupAxis::world, count, 4, 4, 1},
             [&] { group->all_reduce(*stream, shard.data(), count, DType::f32); }},
            {{Collective::all_reduce, GroupAxis::world, count, 4, 2, 1},
             [&] { group->all_reduce(*stream, shard.data(), count, DType::f16); }},
            {{Collective::all_reduce, GroupAxis::world, count, 8, 8, 1},
             [&] { group->all_reduce(*stream, sums.data(), count); }}};
        for (const auto& [use, call] : calls) {
          const std::uint64_t all = sent_by(*group), inter_node = sent_by(group->inter_node()), flat = sent_by(group->flat());
          call();
          const RankTraffic predicted = traffic_of_rank({use}, {cluster.ranks(), 1}, cluster, world.rank());
          expect(sent_by(*group) - all == predicted.total(), "bytes that a rank sends are as predicted");
          // Flat collectives are predicted within and between nodes, but counted only as a sum.
          if (sent_by(group->flat()) == flat)
            expect(sent_by(group->inter_node()) - inter_node == predicted.between_nodes,
                   "bytes between nodes are as predicted");
        }
      }
    });
  }
}

BOOST_AUTO_TEST_CASE(the_traffic_of_a_disk_is_described) {
  BOOST_TEST(describe_disk_traffic({48'200'000'000, 48'200'000'000}, 2, "this node") ==
             "an update reads 96.4 GB from and writes 96.4 GB to the disk of this node; a drive rated for 600 TB written lasts "
             "6,200 updates");
  BOOST_TEST(describe_disk_traffic({12'000, 0}, 1, "a node") ==
             "an update reads 12 kB from and writes 0 kB to the disk of a node");
  BOOST_TEST(describe_disk_traffic({1, 600'000}, 1, "a node").ends_with("lasts 1,000,000,000 updates"));
  BOOST_TEST(describe_disk_traffic({1, 250'000'000'000'000}, 1, "a node").ends_with("written lasts 2 updates"));
}
