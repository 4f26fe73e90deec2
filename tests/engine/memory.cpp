// The account of a rank's memory, compared with sizes computed by hand.
#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "engine/memory.hpp"
#include "nn/families.hpp"
#include "options/options.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(parts_add_up) {
  TrainOptions options;
  options.sharding.batch = {.B = 3, .T = 16};
  options.sharding.plan.micro_batches = 2;
  options.sizes.layers = 2, options.sizes.width = 32, options.sizes.heads = 4, options.sizes.vocab_size = 64;
  const Transformer model(override_config(arch_config("gpt2"), options.sizes));
  const ShardedPlan planned = plan_sharding(model, options.sharding, {2, 1});
  const auto account = [&](ProgramMemory program) {
    return memory_account(options, model, planned, {2, 1}, {.nodes = 1, .ranks_per_node = 2}, program);
  };

  const MemoryAccount plain = account({});
  BOOST_TEST(plain.plan == planned.plan.peak_bytes);
  const std::size_t tokens = 2 * 2 * 2 * 3 * 16 * sizeof(std::int32_t);  // two updates: inputs and targets of 2 micro-batches
  BOOST_TEST(plain.batch >= tokens);
  BOOST_TEST(plain.batch < tokens + 1024);  // and the results
  BOOST_TEST(plain.staging > 0u);
  BOOST_TEST(plain.snapshot == 0u);
  BOOST_TEST(plain.trace == 0u);
  BOOST_TEST(plain.total() == plain.plan + plain.staging + plain.gemm + plain.batch);
  BOOST_TEST(!contains(describe_beside_plan(plain), "for the trace"));

  const MemoryAccount more = account({.snapshot = true, .trace_bytes = 300});
  BOOST_TEST(more.snapshot == snapshot_bytes(planned.layout, DType::f32, 0, 2));
  BOOST_TEST(more.snapshot > 0u);
  const ShardedPlan narrow =
      plan_sharding(model, {.batch = options.sharding.batch, .types = {DType::bf16, DType::f32, DType::bf16}}, {2, 1});
  const double half = static_cast<double>(more.snapshot) / 2,
               of_bf16 = static_cast<double>(snapshot_bytes(narrow.layout, DType::bf16, 0, 2));
  BOOST_TEST((of_bf16 >= half && of_bf16 < 1.01 * half));  // pieces are aligned
  BOOST_TEST(more.trace == 300u);
  BOOST_TEST(more.total() == plain.total() + more.snapshot + more.trace);
  CHECK_CONTAINS(describe_beside_plan(more), "for the copy that a save writes");
}

// On a GPU, host memory does not count, but the memory of driver and libraries does.
BOOST_AUTO_TEST_CASE(parts_of_a_gpu_that_need_not_be_there) {
  TrainOptions options;
  options.sharding.batch = {.B = 3, .T = 16};
  options.sizes.layers = 2, options.sizes.width = 32, options.sizes.heads = 4, options.sizes.vocab_size = 64;
  const Transformer model(override_config(arch_config("gpt2"), options.sizes), traits_of(DeviceKind::cuda, 7));
  const ShardedPlan planned = plan_sharding(model, options.sharding, {2, 1});
  const Cluster two_ranks = {.nodes = 1, .ranks_per_node = 2};
  const MemoryAccount m = memory_account(options, model, planned, {2, 1}, two_ranks, {.snapshot = true});
  BOOST_TEST(m.gemm == 32u << 20);
  BOOST_TEST(m.total() == planned.plan.peak_bytes + m.staging + m.gemm + (3ul << 29));
  BOOST_TEST(m.on_host() == m.batch + m.snapshot);
  BOOST_TEST(m.snapshot > 0u);
  CHECK_CONTAINS(describe_beside_plan(m), "GPU memory in total: " + format_bytes(static_cast<double>(m.total())));
  CHECK_CONTAINS(describe_beside_plan(m), "  host memory:\n");
  // NCCL's staging: a buffer for the largest sum of the shard axis, at most as large as the option allows, and one for the
  // loss.
  std::size_t largest = 0;
  for (const Unit& unit : planned.layout.units()) largest = std::max(largest, unit.padded_numel * sizeof(float));
  constexpr std::size_t least = 2 * 1024;
  BOOST_TEST(m.staging == largest + least);
  BOOST_TEST(staging_on_gpu({.kind = "auto", .sum_staging_bytes = 5000}, planned.plan, {2, 1}) == 5000 + least);
  BOOST_TEST(staging_on_gpu({.kind = "auto", .sum_order = SumOrder::library}, planned.plan, {2, 1}) == 2 * least);
  BOOST_TEST(staging_on_gpu({.kind = "mpi"}, planned.plan, {2, 1}) == 0u);
  // Through the host: one group gathers the largest unit; another group reduces it, and also holds this rank's shard.
  options.comm.kind = "mpi";
  const MemoryAccount by_host = memory_account(options, model, planned, {2, 1}, two_ranks, {.snapshot = true});
  BOOST_TEST(by_host.total() == m.total() - m.staging);
  BOOST_TEST(by_host.on_host() == m.on_host() + largest + largest * 3 / 2 + sizeof(LossSum));  // and the world reduces the loss
  CHECK_CONTAINS(describe_beside_plan(by_host), " of staging for collectives\n");
}
