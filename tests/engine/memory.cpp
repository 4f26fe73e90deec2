// The account of a rank's memory, compared with sizes computed by hand.
#include <algorithm>

#include <boost/test/unit_test.hpp>

#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "engine/memory.hpp"
#include "nn/families.hpp"
#include "options/options.hpp"
#include "support/messages.hpp"
#include "support/places.hpp"

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

// What is in a file counts neither as memory of the device nor as memory of the host.
BOOST_AUTO_TEST_CASE(each_tier_has_its_sum) {
  TrainOptions options;
  options.sharding.batch = {.B = 3, .T = 16};
  options.sizes.layers = 2, options.sizes.width = 32, options.sizes.heads = 4, options.sizes.vocab_size = 64;
  const Transformer model(override_config(arch_config("gpt2"), options.sizes), traits_of(DeviceKind::cuda, 7));
  const auto account = [&](const StatePlaces& places) {
    options.sharding.plan.places = places;
    const ShardedPlan planned = plan_sharding(model, options.sharding, {2, 1});
    const std::string text = describe_memory(planned.plan);
    BOOST_TEST(contains(text, "  offloaded to the host's memory:\n") == (places.gradients == &spaces::host), text);
    BOOST_TEST(contains(text, "  in a file on the disk of the node:\n") == (places.optimizer == &planned_on_disk), text);
    return memory_account(options, model, planned, {2, 1}, {.nodes = 1, .ranks_per_node = 2}, {});
  };
  const Space *const host = &spaces::host, *const disk = &planned_on_disk;
  const MemoryAccount at_hand = account({}), on_host = account({host, host, host}), on_disk = account({disk, disk, host});
  BOOST_TEST(at_hand.on_disk + on_host.on_disk + at_hand.offloaded == 0u);
  BOOST_TEST(on_host.offloaded > 0u);
  BOOST_TEST(on_disk.offloaded > 0u);
  BOOST_TEST(on_disk.on_disk > on_disk.offloaded);  // parameters and two moments, and one gradient
  BOOST_TEST(on_disk.offloaded + on_disk.on_disk == on_host.offloaded);
  BOOST_TEST(on_disk.total() == on_host.total());
  BOOST_TEST(on_disk.on_host() == on_host.on_host() - on_disk.on_disk);
}

namespace {

/// GPT-2 with large logits on a device of this kind.
std::shared_ptr<const Model> with_large_logits(DeviceKind kind) {
  ConfigOverrides sizes;
  sizes.layers = 7, sizes.width = 32, sizes.heads = 4;
  return std::make_shared<const Transformer>(override_config(arch_config("gpt2"), sizes), traits_of(kind, 1));
}

EngineOptions of_large_batches(DeviceKind kind) {
  EngineOptions options;
  options.sharding.batch = {.B = 16, .T = 256};
  options.sharding.plan.micro_batches = 3;
  if (!is_host(kind)) options.sharding.types.parameter = DType::bf16;
  return options;
}

std::size_t total(const FittedPlan& plan) { return plan.memory.total(); }

}  // namespace

BOOST_AUTO_TEST_CASE(the_fewest_blocks_that_fit_are_recomputed) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda})
    for (const MeshShape mesh : {MeshShape{1, 1}, MeshShape{2, 1}, MeshShape{1, 4}}) {
      const auto model = with_large_logits(kind);
      EngineOptions options = of_large_batches(kind);
      options.sharding.strategy = mesh.replicate > 1 ? "none" : "full";
      const Cluster cluster = {1, mesh.shard * mesh.replicate};
      const auto fitted = [&](std::size_t limit) {
        options.recompute_to_fit = limit;
        return fit_plan(model, options, mesh, cluster, {.snapshot = true});
      };
      std::vector<std::size_t> needs;  // by number of recomputed blocks; the last block never is
      for (std::size_t n = 0; n < 7; ++n) {
        EngineOptions tried = options;
        tried.recompute_to_fit = 0, tried.sharding.plan.recomputed_blocks = n;
        needs.push_back(total(fit_plan(model, tried, mesh, cluster, {.snapshot = true})));
      }
      BOOST_TEST(std::is_sorted(needs.rbegin(), needs.rend()));
      BOOST_TEST(needs.front() > needs.back());
      for (std::size_t n = 0; n < 7; ++n)
        for (const std::size_t limit : {needs[n], needs[n] - 1}) {
          const auto first = std::find_if(needs.begin(), needs.end(), [&](std::size_t bytes) { return bytes <= limit; });
          if (first == needs.end() && !is_host(kind)) continue;  // inputs of blocks go to the host
          const FittedPlan plan = fitted(limit);
          BOOST_TEST(plan.fits == (first != needs.end()));
          BOOST_TEST(plan.recomputed_blocks == (plan.fits ? static_cast<std::size_t>(first - needs.begin()) : 6u));
          BOOST_TEST(total(plan) == needs[plan.recomputed_blocks]);
          BOOST_TEST(plan.model == model);  // only a memory limit changes the pieces of logits
        }
    }
}

BOOST_AUTO_TEST_CASE(pieces_of_logits_get_smaller_for_a_memory_limit) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto model = with_large_logits(kind);
    EngineOptions options = of_large_batches(kind);
    const auto fitted = [&](std::size_t limit) {
      options.memory_limit = limit;
      return fit_plan(model, options, {1, 1}, {1, 1}, {});
    };
    const auto pieces = [](const FittedPlan& plan) { return plan.model->device().logits_bytes; };
    const std::size_t whole = total(fitted(0));
    BOOST_TEST(pieces(fitted(whole)) == model->device().logits_bytes);
    const FittedPlan smaller = fitted(whole - 1), smallest = fitted(1);
    BOOST_TEST(smaller.fits);
    BOOST_TEST(pieces(smaller) < model->device().logits_bytes);
    BOOST_TEST(total(smaller) < whole);
    BOOST_TEST(!smallest.fits);
    BOOST_TEST(pieces(smallest) == std::size_t{1} << 20);
    BOOST_TEST(total(smallest) < total(smaller));
    // The pieces are the largest that fit, and are tried before blocks are recomputed.
    BOOST_TEST(pieces(fitted(total(smaller) - 1)) < pieces(smaller));
    options.recompute_to_fit = total(smallest);
    BOOST_TEST(fitted(total(smallest)).recomputed_blocks == 0u);
    options.recompute_to_fit = total(smallest) - 1;
    const FittedPlan both = fitted(total(smallest) - 1);
    BOOST_TEST(both.fits);
    BOOST_TEST(both.recomputed_blocks == 1u);
    options.recompute_to_fit = 0;
    options.sharding.plan.invariant = true;  // then the size of pieces must not depend on the number of ranks
    BOOST_TEST(!fitted(whole - 1).fits);
  }
}

// A row of a block of Llama-8B in bf16, in a batch whose MLPs are computed in pieces.
BOOST_AUTO_TEST_CASE(an_mlp_in_pieces_saves_nothing_of_itself) {
  constexpr std::size_t R = std::size_t{1} << 17, x = 2 * 4096, qkv = 2 * 6144, inner = 2 * 14336, lse = 4 * 32, norm = 4 * 2;
  const TransformerConfig config = arch_config("llama-3.1-8b");
  const ModelSizes sizes = Transformer(config, cuda_traits()).sizes({1, R}, DType::bf16, {});
  BOOST_TEST(sizes.saved.front() == R * (4 * x + qkv + 3 * inner + lse + 2 * norm));
  BOOST_TEST(sizes.saved_in_pieces.front() == R * (3 * x + qkv + lse + norm));
  // With the input, the output and their gradient.
  BOOST_TEST((sizes.saved.front() + 3 * R * x) / R / 1000 == 155u);
  BOOST_TEST((sizes.saved_in_pieces.front() + 3 * R * x) / R / 1000 == 61u);
  BOOST_TEST(sizes.scratch_in_pieces < sizes.scratch);
  // In a smaller batch, one piece has all rows: the plan is that of kept MLPs.
  BOOST_TEST(Transformer(config, cuda_traits()).sizes({1, 8192}, DType::bf16, {}).saved_in_pieces.empty());

  EngineOptions options = of_large_batches(DeviceKind::cuda);
  ConfigOverrides smaller;
  smaller.layers = 4;
  const auto model = std::make_shared<const Transformer>(override_config(config, smaller), cuda_traits());
  options.sharding.batch = {.B = 1, .T = R};
  const auto activations = [&](std::size_t blocks) {
    options.sharding.plan.recomputed_blocks = blocks;
    return fit_plan(model, options, {1, 1}, {1, 1}, {}).memory.of(BufferRole::activations);
  };
  BOOST_TEST(activations(0) == R * 6 * x + 4 * sizes.saved.front());
  BOOST_TEST(activations(3) == R * 6 * x + sizes.saved.front());  // of the last block, which is kept
  BOOST_TEST(activations(4) == R * 6 * x + sizes.saved_in_pieces.front());
}

// If even all recomputed blocks do not fit a GPU, inputs of blocks go to the host, as few as possible.
BOOST_AUTO_TEST_CASE(the_fewest_inputs_that_fit_are_on_the_host) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto model = with_large_logits(kind);
    EngineOptions options = of_large_batches(kind);
    const auto fitted = [&](std::size_t limit) {
      options.recompute_to_fit = limit;
      return fit_plan(model, options, {1, 1}, {1, 1}, {});
    };
    std::vector<std::size_t> needs;  // by number of inputs on the host
    for (std::size_t m = 0; m < 7; ++m) {
      EngineOptions tried = options;
      tried.sharding.plan.recomputed_blocks = 6, tried.sharding.plan.offloaded_inputs = m;
      needs.push_back(total(fit_plan(model, tried, {1, 1}, {1, 1}, {})));
    }
    if (kind == DeviceKind::cpu) {
      BOOST_TEST(!fitted(needs.front() - 1).fits);
      BOOST_TEST(fitted(needs.front() - 1).offloaded_inputs == 0u);
      continue;
    }
    BOOST_TEST(std::is_sorted(needs.rbegin(), needs.rend()));
    BOOST_TEST(needs[3] > needs[4]);
    for (std::size_t m = 0; m < 7; ++m)
      for (const std::size_t limit : {needs[m], needs[m] - 1}) {
        const auto first = std::find_if(needs.begin(), needs.end(), [&](std::size_t bytes) { return bytes <= limit; });
        const FittedPlan plan = fitted(limit);
        BOOST_TEST(plan.fits == (first != needs.end()));
        BOOST_TEST(plan.recomputed_blocks == 6u);
        BOOST_TEST(plan.offloaded_inputs == (plan.fits ? static_cast<std::size_t>(first - needs.begin()) : 6u));
        BOOST_TEST(total(plan) == needs[plan.offloaded_inputs]);
      }
    PlanOptions chosen;
    chosen.recomputed_blocks = 6;
    BOOST_TEST(with_option_names(describe_choice(chosen)) == "--recompute-num-layers 6");
    chosen.offloaded_inputs = 4;
    BOOST_TEST(with_option_names(describe_choice(chosen)) ==
               "--recompute-num-layers 6 --offload-activations --cpu-offloading-num-layers 4");
    chosen.offloaded_inputs = 6;
    BOOST_TEST(with_option_names(describe_choice(chosen)) == "--recompute-num-layers 6 --offload-activations");
  }
}

BOOST_AUTO_TEST_CASE(more_recomputed_blocks_than_there_are) {
  EngineOptions options = of_large_batches(DeviceKind::cpu);
  options.sharding.plan.recomputed_blocks = 8;
  CHECK_CONTAINS(
      with_option_names(message_of([&] { check_sharding(*with_large_logits(DeviceKind::cpu), options.sharding, 1); })),
      "8 blocks cannot be recomputed (the model has 7); lower --recompute-num-layers");
}
