// After the first update fsdp allocates nothing: calls of operator new are counted, including those of libfsdp. (oneDNN's gemm
// takes memory for packing from malloc; the memory plan lists it.)
#include <boost/test/unit_test.hpp>

#include <filesystem>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "count_allocations.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/places.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(updates_do_not_allocate) {
  TransformerConfig config;
  config.vocab_size = 5000, config.max_positions = 64, config.width = 96, config.layers = 3, config.heads = config.kv_heads = 4;
  config.head_size = 24, config.ffn_width = 300;
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid"})
    for (const auto& [both, places] : {std::pair(false, StatePlaces{}), {true, {}}, {true, test::in_a_file(true)}})
      run_ranks(2, [&](Communicator& world) {
        kernels::set_threads(1);
        const auto device = make_cpu_device({.communication_thread = both});  // and recomputation
        const std::size_t before = test::large_allocations();
        ShardedModel sharded(config,
                             {.strategy = strategy,
                              .shard_group_size = 1,
                              .batch = {3, 64},
                              .plan = {.micro_batches = 2, .checkpoint_activations = both, .places = places}},
                             world);
        expect(test::large_allocations() > before, "the counter sees what libfsdp allocates");
        Executor& executor = sharded.allocate(*device, {.nvme_path = std::filesystem::current_path()});
        executor.initialize_parameters(7);
        const BatchReader read = [](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
          for (std::int32_t i = 0; i < 3 * 64; ++i) inputs[i] = i * 7 % 5000, targets[i] = i * 11 % 5000;
        };
        const auto update = [&](std::uint64_t u) {
          executor.run_update(read, {.update = u, .learning_rate = 1e-3, .clip_norm = 1, .tokens = 2 * 2 * 3 * 64});
        };
        update(1);
        executor.evaluate(read);
        world.barrier();
        const std::size_t large = test::large_allocations(), all = test::allocations();
        world.barrier();
        for (std::uint64_t u = 2; u < 6; ++u) update(u);
        executor.evaluate(read);
        world.barrier();
        if (world.rank() == 0) BOOST_TEST(test::large_allocations() == large);  // Boost.Test is not thread-safe
        if (world.rank() == 0)
          BOOST_TEST_MESSAGE(strategy << ": " << test::allocations() - all << " small ones in 4 updates and an evaluation");
        world.barrier();
      });
}
