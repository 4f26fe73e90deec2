// The account of a rank's memory, by hand.
#define BOOST_TEST_MODULE train.memory
#include <boost/test/unit_test.hpp>

#include "checkpoint/checkpoint.hpp"
#include "support/messages.hpp"
#include "train/memory.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(parts_add_up) {
  TrainOptions options;
  options.sharding.batch = {.B = 3, .T = 16};
  options.sharding.plan.micro_batches = 2;
  options.sizes.layers = 2, options.sizes.width = 32, options.sizes.heads = 4, options.sizes.vocab_size = 64;
  const Transformer model(override_config(arch_config("gpt2"), options.sizes));
  const ShardedPlan planned = plan_sharding(model, options.sharding, {2, 1});
  const auto account = [&] { return memory_account(options, model, planned.layout, planned.plan, 1, 2, 1000); };

  const MemoryAccount plain = account();
  BOOST_TEST(plain.plan == planned.plan.peak_bytes);
  BOOST_TEST(plain.batch == 2 * 2 * 3 * 16 * sizeof(std::int32_t));  // inputs and targets of two micro-batches
  BOOST_TEST(plain.snapshot == 0u);
  BOOST_TEST(plain.trace == 0u);
  BOOST_TEST(plain.total() == plain.plan + 1000 + plain.gemm + plain.batch);
  BOOST_TEST(!contains(describe_beside_plan(plain), "of the trace"));

  // Saves by interval go on while training does, and need what they write from; unless training waits.
  options.save.interval_updates = 10;
  options.trace.file = "trace.json";
  const MemoryAccount more = account();
  BOOST_TEST(more.snapshot == snapshot_bytes(planned.layout, DType::f32, 1, 2));
  BOOST_TEST(more.snapshot > 0u);
  BOOST_TEST(more.trace == Recorder::bytes(planned.plan, 3));
  BOOST_TEST(more.total() == plain.total() + more.snapshot + more.trace);
  CHECK_CONTAINS(describe_beside_plan(more), "that a save writes from");
  options.save.training_waits = true;
  BOOST_TEST(account().snapshot == 0u);
}
