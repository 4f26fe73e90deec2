// The MPI backend: the same checks as the threads backend passes, so that both give the same bits; pieces of any length;
// errors.
#include "mpi_main.hpp"

#include <chrono>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/call.hpp"
#include "comm/collective_checks.hpp"
#include "comm/mpi/check_mpi.hpp"
#include "count_allocations.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(collectives_match_a_local_computation) {
  const auto stream = make_host_stream();
  for (const std::size_t count : {0, 1, 2, 5, 17, 1000, 100003}) check_count(world(), *stream, count);
  for (int root = 0; root < world().size(); ++root) check_broadcast(world(), *stream, 3'000'001, root);
  check_host_values(world());
}

BOOST_AUTO_TEST_CASE(messages_are_cut_into_pieces) {
  const auto stream = make_host_stream();
  for (const std::size_t piece_bytes : {1, 63, 64, 1000}) {
    const auto comm = session().world({.piece_bytes = piece_bytes});
    for (const std::size_t count : {0, 1, 2, 5, 17, 257}) check_count(*comm, *stream, count);
  }
  const auto comm = session().world({.piece_bytes = 1000});
  check_all_gather(*comm, *stream, 10007, DType::f32, true);
  check_reduce_scatter(*comm, *stream, 10007, Into::add);
  check_all_reduce<double>(*comm, *stream, 10007);
}

BOOST_AUTO_TEST_CASE(ranks_are_named) {
  BOOST_TEST(name_ranks({3}, {"node7"}) == "rank 3 on node7");
  BOOST_TEST(name_ranks({1, 3}, {"node7", "node7"}) == "ranks 1 and 3 on node7");
  BOOST_TEST(name_ranks({1, 3, 8, 9, 12}, {"node7", "node7", "node8", "node8", "node8"}) ==
             "ranks 1, 3, 8 and 2 more on node7 and node8");
  BOOST_TEST(name_of(Call::reduce_scatter) == "reduce-scatter");
  BOOST_TEST(name_of({Call::all_gather, "block 3"}) == "all-gather of block 3");
}

// A broadcast by a tree: rank 3 receives from rank 2, which receives from the root. A root does not wait when it sends little.
BOOST_AUTO_TEST_CASE(who_does_not_pass_on_may_wait_itself) {
  if (world().size() < 4) return;
  world().barrier();
  const auto comm = session().world({.timeout_s = 0.3});
  double x = 0;
  if (comm->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  } else {
    const bool from_root = comm->rank() < 3;
    const auto names_it = [&](const CollectiveTimeout& error) {
      const std::string text = error.what(), host = session().host();
      return text.find(from_root
                           ? format("rank 0 on {} has not arrived at broadcast within 300 ms", host)
                           : format("rank 2 on {}, or a rank that it waits for, has not arrived at broadcast within 300 ms",
                                    host)) == 0;
    };
    BOOST_CHECK_EXCEPTION(comm->broadcast(&x, sizeof x, 0), CollectiveTimeout, names_it);
  }
  world().barrier();
}

// Rank 0 sums a single number, so only it knows which ranks are missing; the others wait for rank 0, a little longer.
BOOST_AUTO_TEST_CASE(who_adds_up_may_wait_itself) {
  if (world().size() < 3) return;
  world().barrier();
  const auto comm = session().world({.timeout_s = 0.3});
  if (comm->rank() == comm->size() - 1) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  } else {
    const auto names_it = [&](const CollectiveTimeout& error) {
      const std::string text = error.what(), host = session().host();
      return text.find(comm->rank() == 0
                           ? format("rank {} on {} has not arrived at all-reduce within 300 ms", comm->size() - 1, host)
                           : format("rank 0 on {}, or a rank that it waits for, has not arrived at all-reduce within 300 ms",
                                    host)) == 0;
    };
    BOOST_CHECK_EXCEPTION(comm->sum(std::int64_t{1}), CollectiveTimeout, names_it);
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(groups_split) {
  const auto stream = make_host_stream();
  check_splits(world(), *stream);
  const auto node = world().split_by_node();
  BOOST_TEST(node->size() == world().size());  // this test runs on one machine
  check_count(*node, *stream, 1000);
}

BOOST_AUTO_TEST_CASE(staging_is_small) {
  BOOST_TEST(world().staging_bytes() == find_backend("mpi").staging_bytes(one_node(world().size())));
  const std::size_t others = static_cast<std::size_t>(world().size()) - 1;
  BOOST_TEST(world().staging_bytes() <= (std::size_t{4} << 20));
  BOOST_TEST(world().staging_bytes() >= others * 4096);
}

BOOST_AUTO_TEST_CASE(collectives_do_not_allocate) {
  const auto stream = make_host_stream();
  const std::size_t n = 100003, ranks = static_cast<std::size_t>(world().size());
  std::vector<float> whole(ranks * n, 1.0f), shard(n);
  std::vector<double> sums(n);
  std::vector<std::int64_t> counts(n);
  const std::size_t before = allocations();
  BOOST_REQUIRE(before > 0u);
  world().all_gather(*stream, shard.data(), whole.data(), n, DType::f32);
  world().reduce_scatter(*stream, whole.data(), shard.data(), n, Into::add, DType::f32);
  world().all_reduce(*stream, whole.data(), n, DType::f32);
  world().all_reduce(*stream, sums.data(), n);
  world().all_reduce(*stream, counts.data(), n);
  world().broadcast(whole.data(), 4 * n, 0);
  world().barrier();
  const std::size_t after = allocations();
  BOOST_TEST(after == before);
}

BOOST_AUTO_TEST_CASE(failed_calls_say_what_failed) {
  int nobody = 0;
  MPI_Comm comm = MPI_COMM_NULL;
  FSDP_CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  // The session's error handler, inherited: without it MPI would end the job here.
  BOOST_CHECK_EXCEPTION(
      FSDP_CHECK_MPI(MPI_Send(&nobody, 1, MPI_INT, world().size(), 0, comm)), CallError, [](const CallError& e) {
        const std::string text = e.what();
        const char* const problem = MpiSession::library_version().starts_with("MPICH") ? "Invalid rank" : "MPI_ERR_RANK";
        return text.find("MPI_Send(&nobody, 1") != std::string::npos && text.find(problem) != std::string::npos &&
               text.find("tests/comm/mpi.cpp:") != std::string::npos && text.find('\n') == std::string::npos;
      });
  FSDP_CHECK_MPI(MPI_Comm_free(&comm));
  BOOST_CHECK_THROW(session().world({.piece_bytes = 0}), InternalError);
  BOOST_CHECK_THROW(session().world({.piece_bytes = std::size_t{1} << 31}), InternalError);
}

BOOST_AUTO_TEST_CASE(an_aborted_group_refuses) {
  const auto stream = make_host_stream();
  const auto comm = session().world();
  comm->abort();
  float x = 0;
  BOOST_CHECK_THROW(comm->barrier(), GroupAborted);
  BOOST_CHECK_THROW(comm->all_reduce(*stream, &x, 1, DType::f32), GroupAborted);
  BOOST_CHECK_THROW(comm->split(0, 0), GroupAborted);
}

BOOST_AUTO_TEST_CASE(the_session_describes_itself) {
  BOOST_TEST(session().size() == world().size());
  BOOST_TEST(session().rank() == world().rank());
  BOOST_TEST(!session().host().empty());
  BOOST_TEST(MpiSession::library_version().find("MPI") != std::string::npos);
  BOOST_TEST(MpiSession::library_version().find('\n') == std::string::npos);
  BOOST_TEST(world().description().find("MPI") != std::string::npos);
}
