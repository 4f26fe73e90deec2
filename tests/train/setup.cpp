// Setting up a run, on ranks that are threads.
#include <boost/test/unit_test.hpp>

#include "comm/threads/threads.hpp"
#include "support/messages.hpp"
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

// The ranks of a node share its disk. A folder that has too little room, or does not exist, is refused on all ranks.
BOOST_AUTO_TEST_CASE(files_must_fit_the_disk) {
  const auto refusal = [](std::size_t of_rank, const std::filesystem::path& folder) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](Communicator& world) {
      TrainOptions options;
      options.dry_run = true;
      const Machine machine = find_machine(options, world);
      Metrics log({}, 1, false);
      MemoryAccount memory;
      memory.on_disk = of_rank;
      try {
        require_disk({options, world, log}, machine, memory, folder);
      } catch (const UserError& error) {
        messages[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    BOOST_TEST(messages[0] == messages[1]);
    return messages[0];
  };
  const std::filesystem::path here = std::filesystem::current_path();  // the folder for temporary files can be memory
  const std::size_t free = std::filesystem::space(here).available;
  BOOST_TEST(refusal(1, here) == "");
  BOOST_TEST(refusal(0, here / "no such folder") == "");  // no state is in a file
  CHECK_CONTAINS(refusal(free / 2 + free / 8, here), "has too little free space");
  CHECK_CONTAINS(refusal(1, here / "no such folder"), "choose another `folder of state`");
}
