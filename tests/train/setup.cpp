// Setting up a run, on ranks that are threads.
#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "train/setup.hpp"

using namespace fsdp;

// A dry run only makes a plan and no device, for any device of the plan.
BOOST_AUTO_TEST_CASE(a_dry_run_makes_no_device) {
  for (const DeviceChoice device : {DeviceChoice::cpu, DeviceChoice::cuda})
    run_ranks(2, [&](Communicator& world) {
      TrainOptions options;
      options.dry_run = true;
      options.device = device;
      options.arch = "gpt2", options.restore = "none";
      options.sharding.batch = {.B = 3, .T = 16};
      options.sizes.layers = 2, options.sizes.width = 32, options.sizes.heads = 4, options.sizes.vocab_size = 64;
      const Machine machine = find_machine(options, world);
      Metrics log({}, 1, false);
      const Engine engine = make_engine({options, world, log}, find_origin(options, world), machine, nullptr);
      const MemoryAccount memory = memory_account(options, engine.model(), world, *machine.node, {});
      if (world.rank() > 0) return;  // Boost.Test is not made for several threads
      BOOST_TEST(!machine.device);
      BOOST_TEST((memory.device == DeviceKind::cuda) == (device == DeviceChoice::cuda));
    });
}
