// What a ShardedModel refuses, on every rank alike.
#define BOOST_TEST_MODULE fsdp.sharded_model
#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/threads.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// What allocate() complains of on one of two ranks, whose second one then has `later` threads; nothing if it does not.
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

// Each thread has scratch of its own, so that a model has room for as many as it was made for.
BOOST_AUTO_TEST_CASE(more_threads_than_scratch_are_refused_early) {
  for (const int rank : {0, 1}) {
    CHECK_CONTAINS(complaint(rank, 1, 2), "the model is to run with 2 threads and was made for 1 (each thread has scratch");
    BOOST_TEST(complaint(rank, 1, 1) == "");
    BOOST_TEST(complaint(rank, 3, 2) == "");
  }
}
