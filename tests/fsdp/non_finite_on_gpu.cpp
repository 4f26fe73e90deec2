// Where an update that was not finite went wrong: the GPU, whose streams go on by themselves, says what the CPU says.
#define BOOST_TEST_MODULE fsdp.non_finite_on_gpu
#include <limits>

#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "comm/threads/threads.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/threads.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// By rank: the operation and the parameter that find_non_finite() names, or "nothing". The first element of parameter
/// `infinite` is so, if there is one of this number.
std::vector<std::string> found(Threads threads, std::size_t infinite, double loss_scale, bool offloads = false) {
  std::vector<std::string> all(2);
  run_ranks(2, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
    TransformerConfig config;
    config.vocab_size = 24, config.max_positions = 8, config.width = 8, config.layers = 3, config.heads = config.kv_heads = 2;
    config.head_size = 4, config.ffn_width = 16;
    ShardedModel sharded(config, {.batch = {2, 8}, .plan = {.micro_batches = 2, .offload_parameters = offloads}}, world,
                         device->kind() == DeviceKind::cuda ? cuda_traits() : kernels::traits_of_cpu());
    Executor& executor = sharded.allocate(*device);
    executor.initialize_parameters(1);
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
      for (const Slice& slice : sharded.layout().slices(u, sharded.shard()))
        if (slice.parameter == infinite && slice.range.begin == 0)
          executor.parameters().write(u, slice.shard_offset, std::span(&infinity, 1));
    executor.publish_parameters();
    const BatchReader read = [&](std::size_t micro_batch, std::int32_t* inputs, std::int32_t* targets) {
      for (std::int32_t i = 0; i < 16; ++i) {
        inputs[i] = (static_cast<std::int32_t>(micro_batch) * 5 + i * 7 + world.rank()) % 24;
        targets[i] = (inputs[i] + 1) % 24;
      }
    };
    const UpdateScalars scalars = {.learning_rate = 1e-3, .tokens = 64, .loss_scale = loss_scale};
    const bool finite = executor.run_update(read, scalars).finite();
    UpdateScalars harmless = scalars;  // leaves finite gradients in the slots, which whoever looks too early would find
    harmless.loss_scale = 1;
    executor.run_update(read, harmless);
    const std::optional<NonFinite> at = executor.find_non_finite(read, scalars);
    expect(finite || !world.all(!at.has_value()), "a rank finds it");
    all[static_cast<std::size_t>(world.rank())] =
        !at ? "nothing"
            : format("{} of {}", title_of(sharded.plan().update[at->operation], sharded.layout()),
                     sharded.model().parameters()[at->parameter].name);
    world.barrier();
  });
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_gpu_names_what_a_cpu_names) {
  const std::size_t none = std::numeric_limits<std::size_t>::max();
  const auto check = [](std::size_t infinite, double loss_scale, const std::string& part) {
    const auto cpu = found(Threads::one, infinite, loss_scale);
    BOOST_TEST(cpu[0].find(part) != std::string::npos, cpu[0] << " is not " << part);
    for (int time = 0; time < 3; ++time)
      BOOST_TEST(found(Threads::of_gpu, infinite, loss_scale, time == 1) == cpu, boost::test_tools::per_element());
  };
  check(none, 1, "nothing");
  for (const std::size_t parameter : {2, 9, 20}) check(parameter, 1, "forward");
  check(none, 2e40, "reduce-scatter");  // the loss's gradient is finite, and what follows from it is not
}
