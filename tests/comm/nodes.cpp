// Groups that span nodes: the same checks as for the other backends, so that all give the same bits; the traffic between nodes;
// missing ranks; a node without enough memory. Consecutive ranks simulate the nodes.
#include "mpi_main.hpp"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "comm/collective_checks.hpp"
#include "comm/nodes/nodes_communicator.hpp"
#include "comm/threads/threads.hpp"
#include "comm/topology.hpp"
#include "count_allocations.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns the possible numbers of ranks per node in this job: those that give several equal nodes of several ranks.
std::vector<int> sizes_of_nodes() {
  std::vector<int> sizes;
  for (int n = 2; n < world().size(); ++n)
    if (world().size() % n == 0) sizes.push_back(n);
  return sizes;
}

std::unique_ptr<Communicator> world_of_nodes(int ranks_per_node, double timeout_s = 60, const char* kind = "shm") {
  return session().world({.kind = kind, .timeout_s = timeout_s, .ranks_per_node = ranks_per_node});
}

const NodesCommunicator& parts_of(const Communicator& comm) {
  const auto* const by_nodes = dynamic_cast<const NodesCommunicator*>(&comm);
  require(by_nodes != nullptr, "the group goes by nodes");
  return *by_nodes;
}

std::uint64_t all_bytes_sent(const Communicator& comm) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t of_kind : comm.traffic().bytes_sent) bytes += of_kind;
  return bytes;
}

bool power_of_two(int n) { return (n & (n - 1)) == 0; }

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_of_each_node_by_hand) {
  const auto of = [](std::vector<int> nodes) { return ranks_of_each_node(nodes); };
  BOOST_TEST(of({5}) == 1);
  BOOST_TEST(of({5, 5, 5}) == 3);
  BOOST_TEST(of({5, 5, 7, 7}) == 2);
  BOOST_TEST(of({7, 7, 5, 5, 0, 0}) == 2);
  BOOST_TEST(of({1, 2, 3}) == 1);
  BOOST_TEST(of({5, 5, 7}) == 0);
  BOOST_TEST(of({5, 7, 7}) == 0);
  BOOST_TEST(of({5, 5, 7, 7, 7, 7}) == 0);
  BOOST_TEST(of({5, 5, 7, 8}) == 0);
  BOOST_TEST(of({5, 7, 5, 7}) == 0);        // ranks alternate between nodes
  BOOST_TEST(of({5, 5, 7, 7, 5, 5}) == 0);  // node 5 occurs twice
}

BOOST_AUTO_TEST_CASE(equal_nodes_of_several_ranks_go_by_nodes) {
  const int size = world().size();
  for (int n = 1; n <= size; ++n) {
    const auto comm = world_of_nodes(n);
    const bool equal = size % n == 0 && n > 1 && n < size;
    BOOST_TEST((dynamic_cast<NodesCommunicator*>(comm.get()) != nullptr) == equal);
    if (equal)
      BOOST_TEST(comm->description() ==
                 format("MPI between {} nodes, shared memory within{}", size / n, power_of_two(n) ? "" : ", sums by MPI"));
    else
      BOOST_TEST(comm->description().find(n == size ? "shared memory" : "MPI") == 0u);
    BOOST_TEST(comm->split(0, comm->rank())->description() == comm->description());
    BOOST_TEST(comm->split_by_node()->description().find("shared memory") == 0u);
    // Nodes in reverse order also work; alternating nodes do not.
    BOOST_TEST(comm->split(0, -comm->rank())->description() == comm->description());
    if (equal) BOOST_TEST(comm->split(0, comm->rank() % n)->description().find("MPI, ") == 0u);
    BOOST_TEST(world_of_nodes(n, 60, "mpi")->description() == format("MPI, {} ranks", size));
  }
}

BOOST_AUTO_TEST_CASE(collectives_match_a_local_computation) {
  const auto stream = make_host_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    // Within a node small counts use another algorithm than large ones. None of these is a multiple of the ranks of a node and
    // of the pieces of messages and staging areas.
    for (const std::size_t count : {0, 1, 2, 3, 5, 17, 1000, 4097, 100003}) check_count(*comm, *stream, count);
    for (int root = 0; root < comm->size(); ++root) check_broadcast(*comm, *stream, 300'001, root);
    check_host_values(*comm);
  }
}

BOOST_AUTO_TEST_CASE(buffers_may_lie_anywhere) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    const auto ranks = static_cast<std::size_t>(comm->size());
    const std::size_t most = 5003;
    const Buffer shared = comm->allocate(*device, (ranks * most + 100) * sizeof(float));
    for (std::size_t i = 0; i < shared.bytes(); i += 4096) BOOST_REQUIRE((shared.data()[i] == std::byte{0}));
    std::vector<float> own(ranks * most + 100), shard(most);
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, most}) {
      check_buffers(*comm, *stream, floats(shared) + 33, shard.data(), count);
      check_buffers(*comm, *stream, own.data() + 1, shard.data(), count);
      check_buffers(*comm, *stream, comm->rank() % 2 == 0 ? floats(shared) + 7 : own.data(), shard.data(), count);
    }
    check_buffers(*comm, *stream, own.data(), floats(shared), 4099);
    // Only the slots of this node are read in place.
    const auto neighbours = static_cast<std::size_t>(n) - 1;
    BOOST_TEST((comm->borrowed_bytes() >= neighbours * shared.bytes() / static_cast<std::size_t>(n)));
    BOOST_TEST(comm->borrowed_bytes() <= shared.bytes() + 4096);
  }
}

BOOST_AUTO_TEST_CASE(messages_are_cut_into_pieces) {
  const auto stream = make_host_stream();
  for (const int n : sizes_of_nodes())
    for (const std::size_t piece_bytes : {1, 63, 1000}) {
      const auto comm = session().world({.kind = "shm", .piece_bytes = piece_bytes, .ranks_per_node = n});
      for (const std::size_t count : {0, 1, 5, 257}) check_count(*comm, *stream, count);
    }
}

BOOST_AUTO_TEST_CASE(groups_split) {
  const auto stream = make_host_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    check_splits(*comm, *stream);
    std::vector<int> neighbours, across;
    for (int r = 0; r < comm->size(); ++r) {
      if (r / n == comm->rank() / n) neighbours.push_back(r);
      if (r % n == comm->rank() % n) across.push_back(r);
    }
    check_group(*comm->split_by_node(), *comm, *stream, neighbours);
    // The mesh of the hybrid strategies: groups within a node, and groups with one rank of each node.
    const Mesh mesh = make_mesh(*comm, n, comm->size() / n);
    check_group(mesh.shard(), *comm, *stream, neighbours);
    check_group(mesh.replicate(), *comm, *stream, across);
    BOOST_TEST(mesh.shard().description().find("shared memory") == 0u);
    BOOST_TEST(mesh.replicate().description().find("MPI") == 0u);
    // A replicate axis may also communicate by nodes.
    if (n == 4 && comm->size() == 8) {
      const Mesh pairs = make_mesh(*comm, 2, 4);
      BOOST_TEST(pairs.replicate().description() == "MPI between 2 nodes, shared memory within");
      check_count(pairs.replicate(), *stream, 5000);
    }
  }
}

BOOST_AUTO_TEST_CASE(bits_are_those_of_threads) {
  const auto stream = make_host_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    const std::size_t count = 5021, ranks = static_cast<std::size_t>(comm->size());
    auto ours = elements<float>(comm->rank(), ranks * count);
    auto sums = elements<double>(comm->rank(), count);
    std::vector<float> shard(count, 0.1f);
    comm->reduce_scatter(*stream, ours.data(), shard.data(), count, Into::add, DType::f32);
    ours = elements<float>(comm->rank(), ranks * count);
    comm->all_reduce(*stream, ours.data(), ranks * count, DType::f32);
    comm->all_reduce(*stream, sums.data(), count);
    run_ranks(comm->size(), [&](Communicator& threads) {
      auto theirs = elements<float>(threads.rank(), ranks * count);
      auto their_sums = elements<double>(threads.rank(), count);
      std::vector<float> their_shard(count, 0.1f);
      threads.reduce_scatter(*stream, theirs.data(), their_shard.data(), count, Into::add, DType::f32);
      theirs = elements<float>(threads.rank(), ranks * count);
      threads.all_reduce(*stream, theirs.data(), ranks * count, DType::f32);
      threads.all_reduce(*stream, their_sums.data(), count);
      if (threads.rank() == comm->rank())
        require(theirs == ours && their_shard == shard && their_sums == sums, "by nodes and threads give other bits");
    });
  }
}

BOOST_AUTO_TEST_CASE(a_shard_goes_to_each_other_node_once) {
  const auto stream = make_host_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    const NodesCommunicator& parts = parts_of(*comm);
    const auto ranks = static_cast<std::uint64_t>(comm->size()), of_each = static_cast<std::uint64_t>(n),
               nodes = ranks / of_each;
    const std::uint64_t count = 1000, bytes = 4 * count;
    std::vector<float> whole(ranks * count), shard(count);
    std::uint64_t inter_node = 0, intra_node = 0, flat = 0;
    const auto sent = [&](const std::function<void()>& call) {
      inter_node = all_bytes_sent(parts.inter_node()), intra_node = all_bytes_sent(parts.intra_node()),
      flat = all_bytes_sent(parts.flat());
      const std::uint64_t before = all_bytes_sent(*comm);
      call();
      inter_node = all_bytes_sent(parts.inter_node()) - inter_node,
      intra_node = all_bytes_sent(parts.intra_node()) - intra_node;
      flat = all_bytes_sent(parts.flat()) - flat;
      BOOST_TEST(all_bytes_sent(*comm) - before == inter_node + intra_node + flat);
    };
    sent([&] { comm->all_gather(*stream, shard.data(), whole.data(), count, DType::f32); });
    BOOST_TEST(inter_node == (nodes - 1) * bytes);
    BOOST_TEST(intra_node == nodes * (of_each - 1) * bytes);
    BOOST_TEST(flat == 0u);

    sent([&] { comm->reduce_scatter(*stream, whole.data(), shard.data(), count, Into::overwrite, DType::f32); });
    BOOST_TEST(inter_node == (power_of_two(n) ? (nodes - 1) * bytes : 0));
    BOOST_TEST(intra_node == (power_of_two(n) ? nodes * (of_each - 1) * bytes : 0));
    BOOST_TEST(flat == (power_of_two(n) ? 0 : (ranks - 1) * bytes));

    sent([&] { comm->all_reduce(*stream, whole.data(), ranks * count, DType::f32); });
    BOOST_TEST(inter_node == (power_of_two(n) ? 2 * (nodes - 1) * bytes : 0));  // for a node's part, which has `nodes` times
                                                                                // `count` elements
    BOOST_TEST(intra_node == (power_of_two(n) ? 2 * (of_each - 1) * nodes * bytes : 0));
    BOOST_TEST(flat == (power_of_two(n) ? 0 : 2 * (ranks - 1) * bytes));

    // All ranks together send the broadcast data once to each other node.
    sent([&] { comm->broadcast(whole.data(), bytes, 1); });
    auto all_inter_node = static_cast<std::int64_t>(inter_node);
    comm->all_reduce(*stream, &all_inter_node, 1);
    BOOST_TEST(all_inter_node == static_cast<std::int64_t>((nodes - 1) * bytes));
  }
}

BOOST_AUTO_TEST_CASE(collectives_do_not_allocate) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    const std::size_t count = 100003, ranks = static_cast<std::size_t>(comm->size());
    const Buffer slot = comm->allocate(*device, ranks * count * sizeof(float));
    std::vector<float> shard(count, 1.0f);
    std::vector<double> sums(count);
    std::int64_t counts[3] = {1, 2, 3};
    const std::size_t before = allocations();
    BOOST_REQUIRE(before > 0u);
    comm->all_gather(*stream, shard.data(), floats(slot), count, DType::f32);
    comm->reduce_scatter(*stream, floats(slot), shard.data(), count, Into::add, DType::f32);
    comm->all_reduce(*stream, floats(slot), count, DType::f32);
    comm->all_reduce(*stream, sums.data(), count);
    comm->all_reduce(*stream, counts, 3);
    comm->broadcast(shard.data(), 4 * count, 0);
    comm->barrier();
    const std::size_t after = allocations();
    BOOST_TEST(after == before);
  }
}

BOOST_AUTO_TEST_CASE(staging_is_as_planned) {
  for (int n = 1; n <= world().size(); ++n)
    for (const char* const kind : {"shm", "mpi"}) {
      const auto comm = world_of_nodes(n, 60, kind);
      std::vector<int> nodes, odd;
      for (int r = 0; r < comm->size(); ++r) {
        nodes.push_back(r / n);
        if (r % 2 == comm->rank() % 2) odd.push_back(r / n);
      }
      BOOST_TEST(comm->staging_bytes() == find_backend(kind).staging_bytes(nodes));
      BOOST_TEST(comm->split(comm->rank() % 2, 0)->staging_bytes() == find_backend(kind).staging_bytes(odd));
    }
}

BOOST_AUTO_TEST_CASE(one_node_short_of_memory_is_an_error_on_all_ranks) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  for (const int n : sizes_of_nodes()) {
    const bool limited = world().rank() == n;  // the first rank of the second node
    const auto says = [&](const UserError& error) {
      const std::string text = error.what();
      BOOST_TEST_MESSAGE(text);
      return text.find(format("rank {} on {}", n, session().host())) != std::string::npos &&
             text.find("File too large") != std::string::npos;
    };
    const auto comm = world_of_nodes(n);
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit low = old;
    low.rlim_cur = 1 << 16;
    if (limited) BOOST_REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
    BOOST_CHECK_EXCEPTION(comm->allocate(*device, std::size_t{1} << 20), UserError, says);
    check_count(*comm, *stream, 5000);  // the group still works
    BOOST_CHECK_EXCEPTION(world_of_nodes(n), UserError, says);
    // automatic: the ranks of that node send messages to each other.
    const auto fallback = world_of_nodes(n, 60, "auto");
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    const bool on_that_node = world().rank() / n == 1;
    BOOST_TEST((fallback->description().find("MPI within") != std::string::npos) == on_that_node);
    check_count(*fallback, *stream, 5000);
    const Buffer slot = comm->allocate(*device, std::size_t{1} << 20);
    BOOST_TEST(slot.bytes() == std::size_t{1} << 20);
  }
}

BOOST_AUTO_TEST_CASE(who_does_not_come_is_named) {
  const auto stream = make_host_stream();
  stream->subject = "block 3";
  const int size = world().size();
  std::vector<float> data(static_cast<std::size_t>(size) * 20000);
  using Step = std::function<void(Communicator&)>;
  const std::vector<std::pair<std::string, Step>> steps = {
      {"all-gather of block 3", [&](Communicator& c) { c.all_gather(*stream, data.data(), data.data(), 20000, DType::bf16); }},
      {"reduce-scatter of block 3",
       [&](Communicator& c) {
         c.reduce_scatter(*stream, data.data(), data.data() + c.rank() * 20000, 20000, Into::overwrite, DType::f32);
       }},
      {"all-reduce of block 3", [&](Communicator& c) { c.all_reduce(*stream, data.data(), 20000, DType::f32); }},
      {"broadcast", [&](Communicator& c) { c.broadcast(data.data(), 20000, 0); }},
      {"barrier", [&](Communicator& c) { c.barrier(); }}};
  for (const int n : sizes_of_nodes())
    for (const auto& [name, step] : steps) {
      BOOST_TEST_CONTEXT(name << ", " << n << " ranks of each node") {
        world().barrier();
        const int missing = n == 2 ? size - 1 : size - 2;  // and the ranks after it
        const bool flat = !power_of_two(n) && name.find("reduce") != std::string::npos;
        const auto comm = world_of_nodes(n, 0.3);
        comm->barrier();
        if (comm->rank() >= missing) {
          std::this_thread::sleep_for(std::chrono::milliseconds(700));
          // The ranks of its node have aborted, so it gets an error.
          if (!flat) BOOST_CHECK_THROW(step(*comm), CollectiveTimeout);
          continue;
        }
        const bool neighbour = comm->rank() / n == missing / n;
        if (name == "broadcast" && !neighbour) continue;  // these ranks wait only for the root
        const bool exact = neighbour || flat;
        const Timer timer;
        const auto names_it = [&](const CollectiveTimeout& error) {
          const std::string text = error.what(), at = format(" not arrived at {} within 300 ms", name),
                            who =
                                missing == size - 1 ? format("rank {}", missing) : format("ranks {} and {}", missing, size - 1),
                            verb = missing == size - 1 ? "has" : "have";
          BOOST_TEST_MESSAGE(text);
          if (exact) return text.find(format("{} on {} {}{}", who, session().host(), verb, at)) == 0;
          return text.find(", or a rank that it waits for, has" + at) != std::string::npos;
        };
        BOOST_CHECK_EXCEPTION(step(*comm), CollectiveTimeout, names_it);
        // The others wait a little longer than the ranks of that node, which report first and name the missing rank.
        if (!neighbour) BOOST_TEST(timer.seconds() >= (exact ? 0.3 : 0.375));
        BOOST_CHECK_THROW(comm->barrier(), std::runtime_error);
        BOOST_CHECK_THROW(comm->split(0, 0), std::runtime_error);
      }
    }
  world().barrier();
}

// Rank n, the first of the second node, stops between the two steps of a barrier, so rank 0 waits for it. The other ranks
// complete that barrier. In the next one, those of the first node wait for rank 0, which must not be reported as missing.
BOOST_AUTO_TEST_CASE(a_rank_that_waits_for_another_node_is_not_named) {
  const int n = world().size() / 2;
  if (n < 2 || world().size() != 2 * n) return;  // two nodes of several ranks
  const auto comm = world_of_nodes(n, 1);
  comm->barrier();
  const int rank = comm->rank();
  const auto both = [&] {
    comm->barrier();
    comm->barrier();
  };
  const auto names_it = [&](const CollectiveTimeout& error) {
    const std::string text = error.what();
    BOOST_TEST_MESSAGE(text);
    return text.find(format("rank {} on {}{} has not arrived at barrier within 1.0 s", n, session().host(),
                            rank == 0 ? ", or a rank that it waits for," : "")) == 0;
  };
  if (rank == n) {
    const_cast<Communicator&>(parts_of(*comm).intra_node()).barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(1900));
  } else if (rank == 0 || rank > n) {
    BOOST_CHECK_EXCEPTION(both(), CollectiveTimeout, names_it);
  } else {
    BOOST_CHECK_THROW(both(), GroupAborted);  // main() lets rank 0 report
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(abort_ends_this_rank_and_wakes_its_node) {
  const auto stream = make_host_stream();
  for (const int n : sizes_of_nodes()) {
    const auto comm = world_of_nodes(n);
    float x = 1;
    if (comm->rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm->abort();
      BOOST_CHECK_THROW(comm->barrier(), GroupAborted);
      BOOST_CHECK_THROW(comm->split(0, 0), GroupAborted);
      BOOST_CHECK_THROW(comm->allocate(*make_cpu_device(), 100), GroupAborted);
    } else if (comm->rank() < n) {
      BOOST_CHECK_THROW(comm->barrier(), GroupAborted);
    } else {
      // Other nodes do not notice the abort. In a job the launcher ends them; here another thread aborts their group.
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        comm->abort();
      });
      BOOST_CHECK_THROW(comm->all_reduce(*stream, &x, 1, DType::f32), GroupAborted);
      other.join();
      BOOST_CHECK_THROW(comm->all_reduce(*stream, &x, 1, DType::f32), GroupAborted);
    }
    world().barrier();
  }
}
