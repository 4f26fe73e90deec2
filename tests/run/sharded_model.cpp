// Errors of ShardedModel, which are the same on every rank.
#include <boost/test/unit_test.hpp>

#include <array>

#include "comm/agree.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns the error of allocate() on one of two ranks if the second rank has `later` threads; empty if there is none.
std::string complaint(int rank, std::size_t made_for, int later) {
  std::string said;
  run_ranks(2, [&](Communicator& world) {
    kernels::set_threads(1);
    TransformerConfig config;
    config.vocab_size = 16, config.max_positions = 8, config.width = 8, config.layers = 1, config.heads = config.kv_heads = 2;
    config.head_size = 4, config.ffn_width = 16;
    ShardedModel sharded(config, {.batch = {1, 8}}, world, cpu_traits(made_for));
    if (world.rank() == 1) kernels::set_threads(later);
    const auto device = make_cpu_device();
    try {
      sharded.allocate(*device);
    } catch (const UserError& error) {
      if (world.rank() == rank) said = error.what();
    }
    world.barrier();
  });
  return said;
}

}  // namespace

// Each thread has its own scratch, so a model has memory only for the number of threads that it was made for.
BOOST_AUTO_TEST_CASE(more_threads_than_scratch_are_refused_early) {
  for (const int rank : {0, 1}) {
    CHECK_CONTAINS(complaint(rank, 1, 2), "the model would run with 2 threads, but it was made for 1 (each thread needs");
    BOOST_TEST(complaint(rank, 1, 1) == "");
    BOOST_TEST(complaint(rank, 3, 2) == "");
  }
}

// If a rank has other options, all ranks notice and throw the same error.
BOOST_AUTO_TEST_CASE(different_plans_are_refused_by_all_ranks) {
  std::array<std::string, 3> said;
  std::array<int, 3> speakers = {-1, -1, -1};
  run_ranks(3, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto me = static_cast<std::size_t>(world.rank());
    try {
      ShardedModel sharded(arch_config("gpt2"), {.batch = {1, 8}, .plan = {.micro_batches = me == 1 ? 2u : 1u}}, world);
    } catch (const CollectiveError& error) {
      said[me] = error.what(), speakers[me] = error.speaker;
    }
    world.barrier();
  });
  CHECK_CONTAINS(said[0], "this rank's plan differs from that of rank 0");
  for (std::size_t rank = 0; rank < 3; ++rank) {
    BOOST_TEST(said[rank] == said[0]);
    BOOST_TEST(speakers[rank] == 1);
  }
}
