// The shared memory backend: the same checks as for the other backends, so that all give the same bits; buffers from allocate()
// and others; nodes; too little memory; missing ranks.
#include "mpi_main.hpp"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "comm/collective_checks.hpp"
#include "comm/threads/threads.hpp"
#include "count_allocations.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::unique_ptr<Communicator> shared_world(double timeout_s = 60) {
  return session().world({.kind = "shm", .timeout_s = timeout_s});
}

}  // namespace

BOOST_AUTO_TEST_CASE(collectives_match_a_local_computation) {
  const auto comm = shared_world();
  BOOST_TEST(comm->description().find("shared memory") != std::string::npos);
  const auto stream = make_host_stream();
  // Above 16 KiB by pieces of half a MiB; 200003 is neither a multiple of a piece nor of the ranks.
  for (const std::size_t count : {0, 1, 2, 5, 17, 1000, 4096, 4097, 200003}) check_count(*comm, *stream, count);
  for (int root = 0; root < comm->size(); ++root) check_broadcast(*comm, *stream, 3'000'001, root);
  check_host_values(*comm);
}

BOOST_AUTO_TEST_CASE(buffers_may_lie_anywhere) {
  const auto comm = shared_world();
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const auto ranks = static_cast<std::size_t>(comm->size());
  const std::size_t most = 150001;
  Buffer first = comm->allocate(*device, 1000);
  const Buffer shared = comm->allocate(*device, (ranks * most + 100) * sizeof(float));
  for (std::size_t i = 0; i < shared.bytes(); i += 4096) BOOST_REQUIRE((shared.data()[i] == std::byte{0}));
  std::vector<float> own(ranks * most + 100), shard(most);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{4099}, most}) {
    // Within a buffer, not at its start; on all ranks, on none, on some.
    check_buffers(*comm, *stream, floats(shared) + 33, shard.data(), count);
    check_buffers(*comm, *stream, own.data() + 1, shard.data(), count);
    check_buffers(*comm, *stream, comm->rank() % 2 == 0 ? floats(shared) + 7 : own.data(), shard.data(), count);
  }
  // The shard in shared memory, too.
  check_buffers(*comm, *stream, own.data(), floats(shared), 4099);
  BOOST_TEST(comm->borrowed_bytes() <= shared.bytes() + first.bytes() + 2 * 4096);
  BOOST_TEST((comm->borrowed_bytes() >= (ranks - 1) * shared.bytes() / ranks));

  // Released memory is forgotten, also if the next allocation has the same address.
  const std::size_t borrowed = comm->borrowed_bytes();
  first = Buffer();
  const Buffer again = comm->allocate(*device, 1000), nothing = comm->allocate(*device, 0);
  BOOST_TEST(comm->borrowed_bytes() == borrowed);
  BOOST_TEST((again.data()[999] == std::byte{0}));
  BOOST_TEST(nothing.bytes() == 0u);
  check_buffers(*comm, *stream, own.data(), shard.data(), 4099);
}

BOOST_AUTO_TEST_CASE(a_buffer_may_outlive_its_group) {
  const auto device = make_cpu_device();
  auto comm = shared_world();
  const Buffer buffer = comm->allocate(*device, 100000);
  comm.reset();
  buffer.data()[99999] = std::byte{1};
  BOOST_TEST((buffer.data()[99999] == std::byte{1}));
}

BOOST_AUTO_TEST_CASE(groups_split) {
  const auto comm = shared_world();
  const auto stream = make_host_stream();
  check_splits(*comm, *stream);
  const auto node = comm->split_by_node();
  BOOST_TEST(node->size() == comm->size());
  BOOST_TEST(node->description() == comm->description());
  check_count(*node, *stream, 1000);
}

BOOST_AUTO_TEST_CASE(groups_across_nodes_send_messages) {
  const auto stream = make_host_stream();
  const auto comm = session().world({.kind = "shm", .timeout_s = 60, .ranks_per_node = 2});
  const bool several = comm->size() > 2;
  BOOST_TEST((comm->description().find("MPI") != std::string::npos) == several);
  check_count(*comm, *stream, 5000);
  check_splits(*comm, *stream);
  std::vector<int> neighbours;
  for (int r = comm->rank() / 2 * 2; r < std::min(comm->size(), comm->rank() / 2 * 2 + 2); ++r) neighbours.push_back(r);
  const auto node = comm->split_by_node();
  BOOST_TEST(node->description().find("shared memory") == 0u);
  check_group(*node, *comm, *stream, neighbours);
  // A group of one rank per node.
  const auto across = comm->split(comm->rank() % 2, 0);
  BOOST_TEST((across->description().find("MPI") == 0) == (across->size() > 1));
  check_count(*across, *stream, 5000);
  // With --comm mpi, ranks do not share memory.
  BOOST_TEST(session().world({.kind = "mpi"})->split_by_node()->description().find("MPI") == 0u);
}

BOOST_AUTO_TEST_CASE(bits_are_those_of_threads) {
  const auto comm = shared_world();
  const auto stream = make_host_stream();
  const std::size_t n = 50021, ranks = static_cast<std::size_t>(comm->size());
  auto ours = elements<float>(comm->rank(), ranks * n);
  std::vector<float> shard(n, 0.1f);
  comm->reduce_scatter(*stream, ours.data(), shard.data(), n, Into::add, DType::f32);
  comm->all_reduce(*stream, ours.data(), ranks * n, DType::f32);
  run_ranks(comm->size(), [&](Communicator& threads) {
    auto theirs = elements<float>(threads.rank(), ranks * n);
    std::vector<float> their_shard(n, 0.1f);
    threads.reduce_scatter(*stream, theirs.data(), their_shard.data(), n, Into::add, DType::f32);
    threads.all_reduce(*stream, theirs.data(), ranks * n, DType::f32);
    if (threads.rank() == comm->rank())
      require(theirs == ours && their_shard == shard, "shared memory and threads give other bits");
  });
}

BOOST_AUTO_TEST_CASE(collectives_do_not_allocate) {
  const auto comm = shared_world();
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const std::size_t n = 100003, ranks = static_cast<std::size_t>(comm->size());
  const Buffer slot = comm->allocate(*device, ranks * n * sizeof(float));
  std::vector<float> shard(n, 1.0f);
  std::vector<double> sums(n);
  std::int64_t counts[3] = {1, 2, 3};
  const std::size_t before = allocations();
  BOOST_REQUIRE(before > 0u);
  comm->all_gather(*stream, shard.data(), floats(slot), n, DType::f32);
  comm->reduce_scatter(*stream, floats(slot), shard.data(), n, Into::add, DType::f32);
  comm->all_reduce(*stream, sums.data(), n);
  comm->all_reduce(*stream, counts, 3);
  comm->broadcast(shard.data(), 4 * n, 0);
  comm->barrier();
  const std::size_t after = allocations();
  BOOST_TEST(after == before);
}

BOOST_AUTO_TEST_CASE(staging_is_small) {
  const auto comm = shared_world();
  BOOST_TEST(comm->staging_bytes() == find_backend("shm").staging_bytes(one_node(comm->size())));
  BOOST_TEST(comm->staging_bytes() <= (std::size_t{2} << 20));
  if (comm->size() > 1) BOOST_TEST(comm->staging_bytes() >= (std::size_t{1} << 20));
}

BOOST_AUTO_TEST_CASE(different_counts_are_an_error_on_all_ranks) {
  if (world().size() == 1) return;
  for (const std::size_t count : {3, 50000}) {
    const auto comm = shared_world();
    const auto stream = make_host_stream();
    std::vector<float> data(count);
    BOOST_CHECK_THROW(comm->all_reduce(*stream, data.data(), comm->rank() == 1 ? count - 1 : count, DType::f32), InternalError);
  }
}

BOOST_AUTO_TEST_CASE(short_of_memory_is_an_error_on_all_ranks) {
  if (world().size() == 1) return;
  const auto device = make_cpu_device();
  const auto says = [](std::vector<std::string> texts) {
    return [texts](const RunError& error) {
      const std::string message = error.what();
      for (const std::string& text : texts)
        if (message.find(text) == std::string::npos) {
          BOOST_TEST_MESSAGE(message);
          return false;
        }
      return true;
    };
  };
  {  // more memory than the machine has
    const auto comm = shared_world();
    BOOST_CHECK_EXCEPTION(comm->allocate(*device, std::size_t{1} << 45), RunError,
                          says({"TiB of shared memory", "available", "`communication by messages`, which shares none"}));
    const auto stream = device->make_stream();
    check_count(*comm, *stream, 5000);  // the group still works
  }
  // One rank cannot allocate: the system refuses files longer than this limit.
  const bool limited = world().rank() == 1;
  const auto comm = shared_world();
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = old;
  low.rlim_cur = 1 << 16;
  if (limited) BOOST_REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
  BOOST_CHECK_EXCEPTION(comm->allocate(*device, std::size_t{1} << 20), RunError,
                        says({"of shared memory", "rank 1 on " + session().host(), "File too large",
                              "`communication by messages`, which shares none"}));
  // The same for groups, because rank 0 makes their memory: `shm` gives the reason, `auto` sends messages.
  BOOST_REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
  BOOST_CHECK_EXCEPTION(
      shared_world(), RunError,
      says({"rank 0 on " + session().host(), "File too large", "`communication by messages`, which shares none"}));
  const auto fallback = session().world({.kind = "auto"});
  BOOST_TEST(fallback->description().find("MPI") == 0u);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  BOOST_TEST(session().world({.kind = "auto"})->description().find("shared memory") == 0u);
}

// The last rank or the last two are missing, in a call of a unit and in one without a unit.
BOOST_AUTO_TEST_CASE(who_does_not_come_is_named) {
  using Step = std::function<void(Communicator&)>;
  const int size = world().size();
  const auto stream = make_host_stream();
  stream->subject = "block 3";
  std::vector<float> data(100000);
  const Step all_reduce = [&](Communicator& c) { c.all_reduce(*stream, data.data(), data.size(), DType::f32); };
  const Step barrier = [](Communicator& c) { c.barrier(); };
  const auto check = [&](const std::string& kind, bool split, int missing, const Step& step, const std::string& name) {
    BOOST_TEST_CONTEXT(kind << (split ? ", split, " : ", ") << missing << " missing at " << name) {
      if (missing >= size) return;
      world().barrier();
      const auto comm = session().world({.kind = kind, .timeout_s = 0.3});
      // Split: a group of the missing ranks and one other, in reverse order; the message has ranks of the job.
      const bool outside = split && comm->rank() < size - missing - 1;
      const auto part = comm->split(outside ? 1 : 0, -comm->rank());
      if (outside) return;
      step(*part);
      if (comm->rank() < size - missing) {
        const Timer timer;
        const auto names_them = [&](const CollectiveTimeout& error) {
          const std::string text = error.what();
          const std::string who = missing == 1 ? format("rank {}", size - 1) : format("ranks {} and {}", size - 2, size - 1);
          BOOST_TEST_MESSAGE(text);
          return text.find(format("{} on {} {} not arrived at {} within 300 ms", who, session().host(),
                                  missing == 1 ? "has" : "have", name)) == 0;
        };
        BOOST_CHECK_EXCEPTION(step(*part), CollectiveTimeout, names_them);
        BOOST_TEST(timer.seconds() >= 0.2);  // with shared memory the first rank to time out aborts for all
        BOOST_CHECK_THROW(part->barrier(), std::runtime_error);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(900));
        // With shared memory, the late rank also gets an error.
        if (kind == "shm") BOOST_CHECK_THROW(step(*part), CollectiveTimeout);
      }
    }
  };
  for (const std::string kind : {"shm", "mpi"}) {
    for (const bool split : {false, true})
      for (const int missing : {1, 2}) check(kind, split, missing, all_reduce, "all-reduce of block 3");
    check(kind, false, 2, barrier, "barrier");
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(abort_wakes_all) {
  if (world().size() == 1) return;
  // In the group of the missing rank, and in a split of it without missing ranks.
  for (const bool split : {false, true}) {
    const auto comm = shared_world();
    const auto part = comm->split(split ? (comm->rank() == 0 ? 0 : 1) : 0, 0);
    const auto stream = make_host_stream();
    float x = 1;
    if (comm->rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm->abort();
      BOOST_CHECK_THROW(part->barrier(), GroupAborted);
      BOOST_CHECK_THROW(comm->split(0, 0), GroupAborted);
    } else {
      BOOST_CHECK_THROW(
          {
            if (!split || comm->size() == 2) comm->barrier();
            for (;;) part->all_reduce(*stream, &x, 1, DType::f32);
          },
          GroupAborted);
    }
    world().barrier();
  }
}

BOOST_AUTO_TEST_CASE(who_waits_takes_no_core) {
  if (world().size() == 1) return;
  const auto comm = shared_world();
  comm->barrier();
  if (comm->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    comm->barrier();
  } else {
    const auto used_s = [] {
      rusage usage{};
      getrusage(RUSAGE_THREAD, &usage);
      return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
             1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    const double before = used_s();
    comm->barrier();
    BOOST_TEST(used_s() - before < 0.05);
  }
}
