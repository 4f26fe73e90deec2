// Updates that are not applied: the first value that was not finite, and spikes. The GPU, with asynchronous streams, must give
// the same results as the CPU.
#include <limits>

#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "run/small_model.hpp"
#include "support/places.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// The results of 6 updates with --skip-spikes on all ranks. There are limits from the third update on; the third and the fifth
/// update read other data.
struct Updates {
  std::vector<double> losses, norms;                 // on rank 0
  std::vector<std::vector<bool>> spikes, unchanged;  // by rank and update: is it a spike; are parameters and state unchanged
};

Updates with_limits(Threads threads, double most_loss, double most_norm, bool offloads) {
  Updates all;
  all.spikes.resize(2), all.unchanged.resize(2);
  run_ranks(2, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
    ShardedModel sharded(small_model(),
                         {.batch = {2, 8}, .plan = {.micro_batches = 2, .places = offloaded(offloads, offloads)}}, world,
                         device->kind() == DeviceKind::cuda ? cuda_traits() : kernels::traits_of_cpu());
    Executor& executor = sharded.allocate(*device, {}, {.kind = threads == Threads::of_own_gpu ? "nccl" : "mpi"});
    executor.initialize_parameters(1);
    executor.publish_parameters();
    const auto state = [&] {
      std::vector<std::vector<float>> units;
      const ShardState parameters = executor.parameters();
      for (std::size_t u = 0; u < parameters.units.size(); ++u) units.push_back(parameters.values(u));
      for (const ShardState& moments : executor.optimizer_states())
        for (std::size_t u = 0; u < moments.units.size(); ++u) units.push_back(moments.values(u));
      return units;
    };
    const auto me = static_cast<std::size_t>(world.rank());
    for (std::uint64_t u = 1; u <= 6; ++u) {
      const bool odd = u == 3 || u == 5;
      const BatchReader read = [&](std::size_t micro_batch, std::int32_t* inputs, std::int32_t* targets) {
        for (std::int32_t i = 0; i < 16; ++i) {
          inputs[i] = (static_cast<std::int32_t>(micro_batch) * 5 + i * 7 + world.rank()) % 24;
          targets[i] = odd ? (inputs[i] * inputs[i] + 5) % 24 : (inputs[i] + 1) % 24;
        }
      };
      const auto before = state();
      UpdateScalars scalars = {.update = u, .learning_rate = 0.02, .clip_norm = 1, .tokens = 64};
      if (u > 2) scalars.most_loss = most_loss, scalars.most_norm = most_norm;
      const UpdateResult result = executor.run_update(read, scalars);
      all.spikes[me].push_back(result.is_spike);
      all.unchanged[me].push_back(state() == before);
      if (me > 0) continue;
      all.losses.push_back(result.loss);
      all.norms.push_back(result.gradient_norm);
    }
  });
  return all;
}

/// Returns for each rank the operation and the parameter that find_non_finite() names, or "nothing". The first element of
/// parameter number `infinite` is set to infinity, if there is such a parameter.
std::vector<std::string> found(Threads threads, std::size_t infinite, double loss_scale, bool offloads = false) {
  std::vector<std::string> all(2);
  run_ranks(2, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
    ShardedModel sharded(small_model(),
                         {.batch = {2, 8}, .plan = {.micro_batches = 2, .places = offloaded(offloads, offloads)}}, world,
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
    UpdateScalars harmless = scalars;  // leaves finite gradients in the slots, which a check that runs too early would find
    harmless.loss_scale = 1;
    executor.run_update(read, harmless);
    const std::optional<NonFinite> at = executor.find_non_finite(scalars);
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
  check(none, 2e40, "reduce-scatter");  // the gradient of the loss is finite, and the gradients computed from it are not
}

// The host reads the sums of an update that may be a spike; on the device they then prevent any change.
BOOST_AUTO_TEST_CASE(a_gpu_leaves_out_the_spikes_that_a_cpu_leaves_out) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Updates all = with_limits(Threads::one, infinity, infinity, false);
  const auto between = [](const std::vector<double>& values) { return (values[1] + values[2]) / 2; };
  for (const auto& [most_loss, most_norm] : {std::pair(between(all.losses), infinity), std::pair(1e9, between(all.norms))}) {
    const Updates cpu = with_limits(Threads::one, most_loss, most_norm, false);
    BOOST_TEST_REQUIRE(cpu.spikes[0][2], "limits of " << most_loss << " and " << most_norm << " find a spike");
    BOOST_TEST(!cpu.spikes[0][3]);
    BOOST_CHECK(cpu.unchanged == cpu.spikes);
    for (const bool offloads : {false, true}) {
      const Updates gpu = with_limits(offloads ? Threads::of_own_gpu : Threads::of_gpu, most_loss, most_norm, offloads);
      BOOST_CHECK(gpu.spikes == cpu.spikes);
      BOOST_CHECK(gpu.unchanged == cpu.spikes);
      for (std::size_t u = 0; u < cpu.losses.size(); ++u) {
        BOOST_TEST(std::abs(gpu.losses[u] - cpu.losses[u]) < 1e-4);
        BOOST_TEST(std::abs(gpu.norms[u] - cpu.norms[u]) < 1e-4 * (1 + cpu.norms[u]));
      }
    }
  }
}
