// The threads backend: every collective at one to seven ranks, and what happens when a rank fails.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "comm/collective_checks.hpp"
#include "comm/threads/threads.hpp"
#include "comm/tree_sum.hpp"
#include "support/by_nodes.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {
void on_ranks(int size, const std::function<void(Communicator&, Stream&)>& body, int ranks_per_node = 0) {
  run_ranks(
      size,
      [&](Communicator& comm) {
        const auto stream = make_host_stream();
        body(comm, *stream);
      },
      ranks_per_node);
}
}  // namespace

BOOST_AUTO_TEST_CASE(sums_add_in_the_canonical_order) {
  // Seven inputs with a sum by hand, whose bits depend on the order.
  const std::size_t n = 3000;
  std::vector<std::vector<float>> x;
  std::vector<const void*> inputs;
  for (int r = 0; r < 7; ++r) x.push_back(elements<float>(r, n));
  for (auto& row : x) inputs.push_back(row.data());
  std::vector<float> sum(n);
  tree_sum<float>(inputs, n, sum.data(), Into::overwrite);
  std::size_t sequential_differs = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto v = [&](std::size_t r) { return x[r][i]; };
    require_same_bits(sum[i], ((v(0) + v(1)) + (v(2) + v(3))) + ((v(4) + v(5)) + v(6)), "tree_sum", i);
    sequential_differs += sum[i] != v(0) + v(1) + v(2) + v(3) + v(4) + v(5) + v(6);
  }
  BOOST_TEST(sequential_differs > n / 10);
  // The result may overwrite an input.
  const auto copy = x[4];
  tree_sum<float>(inputs, n, x[4].data(), Into::overwrite);
  BOOST_TEST(x[4] == sum);
  x[4] = copy;
}

BOOST_AUTO_TEST_CASE(collectives_match_a_local_computation) {
  for (int size = 1; size <= 7; ++size)
    on_ranks(size, [](Communicator& comm, Stream& stream) {
      for (const std::size_t count : {0, 1, 2, 5, 17, 1000}) check_count(comm, stream, count);
      for (int root = 0; root < comm.size(); ++root) check_broadcast(comm, stream, 1001, root);
      check_reduce_scatter(comm, stream, 100003, Into::add);
      check_all_reduce<float>(comm, stream, 100003);
      check_host_values(comm);
    });
}

BOOST_AUTO_TEST_CASE(groups_split) {
  for (int size = 1; size <= 7; ++size) on_ranks(size, check_splits);
}

BOOST_AUTO_TEST_CASE(nodes_are_simulated) {
  on_ranks(
      7,
      [](Communicator& comm, Stream& stream) {
        const int first = comm.rank() / 3 * 3;
        std::vector<int> members;
        for (int r = first; r < std::min(7, first + 3); ++r) members.push_back(r);
        check_group(*comm.split_by_node(), comm, stream, members);
        // Within a group of ranks 0, 2, 4, 6 the nodes are {0, 2}, {4}, {6}.
        const auto even = comm.split(comm.rank() % 2, 0);
        const auto node = even->split_by_node();
        if (comm.rank() % 2 == 0) require(node->size() == (comm.rank() < 3 ? 2 : 1), "nodes of a group");
      },
      3);
  on_ranks(3, [](Communicator& comm, Stream&) { require(comm.split_by_node()->size() == 3, "one node by default"); });
}

BOOST_AUTO_TEST_CASE(groups_made_of_groups_give_the_same_bits) {
  for (const auto& [nodes, of_each] : std::vector<std::pair<int, int>>{{2, 2}, {3, 2}, {2, 3}, {3, 3}, {2, 4}, {5, 4}, {3, 8}})
    on_ranks(nodes * of_each, [of_each](Communicator& comm, Stream& stream) {
      const auto parts = by_nodes(comm, of_each);
      for (const std::size_t count : {0, 1, 2, 5, 17, 1000}) check_count(*parts, stream, count);
      for (int root = 0; root < comm.size(); ++root) check_broadcast(*parts, stream, 1001, root);
      std::vector<float> whole(static_cast<std::size_t>(comm.size()) * 100 + guard), shard(100);
      check_buffers(*parts, stream, whole.data(), shard.data(), 100);
      check_host_values(*parts);
      check_splits(*parts, stream);
    });
}

BOOST_AUTO_TEST_CASE(a_group_of_one_needs_no_launcher) {
  const auto comm = make_self_communicator();
  const auto stream = make_host_stream();
  BOOST_TEST(comm->size() == 1);
  for (const std::size_t count : {0, 1, 1000}) check_count(*comm, *stream, count);
  check_splits(*comm, *stream);
  for (const std::uint64_t bytes : comm->traffic().bytes_sent) BOOST_TEST(bytes == 0u);
  BOOST_TEST(comm->traffic().calls[static_cast<std::size_t>(Collective::all_reduce)] > 0u);
}

BOOST_AUTO_TEST_CASE(a_failing_rank_ends_all) {
  // Ranks 2 and 3 fail, and therefore the others fail, too: the error of rank 2 is thrown.
  for (const bool in_a_split_group : {false, true}) {
    std::atomic<int> consequences = 0;
    const auto body = [&](Communicator& world) {
      const auto stream = make_host_stream();
      // With groups of two, rank 5's group has no failed rank, but is also aborted.
      const auto group = world.split(in_a_split_group ? world.rank() / 2 : 0, 0);
      for (int step = 0;; ++step) {
        // Memory that is freed when this rank fails.
        const auto data = std::make_unique<std::vector<float>>(10007, 1.0f);
        if (step == 5 && world.rank() == 3) throw UserError("rank three");
        if (step == 5 && world.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          throw UserError("rank two");
        }
        try {
          group->all_reduce(*stream, data->data(), data->size(), DType::f32);
        } catch (const GroupAborted&) {
          ++consequences;
          throw;
        }
      }
    };
    BOOST_CHECK_EXCEPTION(run_ranks(6, body), UserError,
                          [](const UserError& e) { return std::string(e.what()) == "rank two"; });
    BOOST_TEST(consequences == 4);
  }
}

BOOST_AUTO_TEST_CASE(different_counts_are_an_error_on_all_ranks) {
  std::atomic<int> failures = 0;
  const auto body = [&](Communicator& comm) {
    const auto stream = make_host_stream();
    std::vector<float> data(10);
    try {
      comm.all_reduce(*stream, data.data(), comm.rank() == 1 ? 9 : 10, DType::f32);
    } catch (const InternalError&) {
      ++failures;
      throw;
    }
  };
  BOOST_CHECK_THROW(run_ranks(3, body), InternalError);
  BOOST_TEST(failures == 3);
}

BOOST_AUTO_TEST_CASE(abort_is_for_good) {
  std::atomic<int> refused = 0;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 1) comm.abort();
    try {
      comm.barrier();
    } catch (const GroupAborted&) {
      ++refused;
    }
    comm.barrier();
  };
  BOOST_CHECK_THROW(run_ranks(3, body), GroupAborted);
  BOOST_TEST(refused == 3);
}
