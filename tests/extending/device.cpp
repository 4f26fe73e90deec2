// Adds the device of docs/extending-device.md (support/threaded_device.cpp) from outside the library. A model trained
// on it has the bits of a run on the CPU.
#include <vector>

#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "extending/document.hpp"
#include "extending/small_job.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns the losses, the norms and finally all weights, by rank.
std::vector<std::vector<double>> train(int ranks, bool on_threads) {
  std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    std::unique_ptr<Device> device = make_cpu_device();
    if (on_threads) device = std::make_unique<ThreadedDevice>(static_cast<std::uint64_t>(world.rank()));
    ShardedModel sharded(small_model(), {.batch = {B, T}, .plan = {.micro_batches = 2}}, world);
    Executor& executor = sharded.allocate(*device);
    executor.initialize_parameters(3);
    executor.publish_parameters();
    std::vector<double>& mine = all[static_cast<std::size_t>(world.rank())];
    for (std::uint64_t update = 1; update <= 4; ++update) {
      const auto read = [&](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
        read_small_batch(world.rank(), micro, inputs, targets);
      };
      const double tokens = static_cast<double>(2 * B * T) * ranks;
      const UpdateResult done =
          executor.run_update(read, {.update = update, .learning_rate = 1e-2, .clip_norm = 1, .tokens = tokens});
      mine.insert(mine.end(), {done.loss, done.gradient_norm});
    }
    for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
      for (const float weight : executor.parameters().values(u)) mine.push_back(weight);
  });
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(it_has_the_bits_of_the_cpu) {
  for (const int ranks : {1, 2, 3}) BOOST_TEST((train(ranks, true) == train(ranks, false)), ranks << " ranks");
}

BOOST_AUTO_TEST_CASE(the_document_shows_what_is_compiled) { check_code_of("extending-device.md", 3); }
