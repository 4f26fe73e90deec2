// The host waits once for an update of a GPU: at its end, for the sums. Counted by the double of CUDA.
#define BOOST_TEST_MODULE fsdp.waits_on_gpu
#include <boost/test/unit_test.hpp>

#include <cuda_runtime_api.h>

#include "comm/threads/threads.hpp"
#include "fsdp/sharded_model.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(one_for_each_update) {
  std::vector<std::uint64_t> waits;
  run_ranks(1, [&](Communicator& world) {
    const auto device = make_device(Threads::of_gpu, 0);
    TransformerConfig config;
    config.vocab_size = 24, config.max_positions = 8, config.width = 8, config.layers = 3, config.heads = config.kv_heads = 2;
    config.head_size = 4, config.ffn_width = 16;
    ShardedModel sharded(
        config,
        {.batch = {2, 8}, .types = {.parameter = DType::bf16}, .plan = {.micro_batches = 3, .checkpoint_activations = true}},
        world, cuda_traits());
    Executor& executor = sharded.allocate(*device);
    executor.initialize_parameters(1);
    executor.publish_parameters();
    const BatchReader read = [](std::size_t micro_batch, std::int32_t* inputs, std::int32_t* targets) {
      for (std::int32_t i = 0; i < 16; ++i) {
        inputs[i] = (static_cast<std::int32_t>(micro_batch) * 5 + i * 7) % 24;
        targets[i] = (inputs[i] + 1) % 24;
      }
    };
    for (std::uint64_t u = 1; u <= 3; ++u) {
      const std::uint64_t before = cuda_double::host_waits();
      const UpdateResult result =
          executor.run_update(read, {.update = u, .learning_rate = 1e-3, .clip_norm = 1, .tokens = 3 * 16});
      waits.push_back(cuda_double::host_waits() - before);
      expect(result.finite() && result.loss > 1, "an update happens");
    }
  });
  // None where the GPU was faster than the host.
  for (const std::uint64_t count : waits) BOOST_TEST(count <= 1);
  BOOST_TEST(waits.size() == 3u);
}
