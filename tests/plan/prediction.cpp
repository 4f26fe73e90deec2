// The predicted time of an update, computed by hand.
#include <cmath>
#include <cstdlib>

#include <boost/test/unit_test.hpp>

#include "apps/small_plan.hpp"
#include "base/format.hpp"
#include "nn/transformer.hpp"
#include "options/model_options.hpp"
#include "plan/prediction.hpp"
#include "support/places.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

StepPrediction predict(const PlanTableOptions& options, const char* strategy, const GpuFigures& gpu,
                       const Efficiency& efficiency = {1, 1, 1, 1, 1}, const DiskRates& disk = {}) {
  ShardingOptions sharding = options.train.sharding;
  sharding.strategy = strategy;
  const Transformer model(named_config(options.train, nullptr), cuda_traits());
  return predict_update(model, sharding, mesh_shape(find_placement(strategy), options.cluster.ranks(), 2), options.cluster, gpu,
                        disk, efficiency);
}

bool near(double found, double expected) { return std::abs(found - expected) <= 1e-9 * std::abs(expected); }

// GPUs that are infinitely fast in all respects except one: the time is that of this one.
constexpr double fast = 1e30;
const GpuFigures computes{"", "", 1, 10, 0, fast, fast, fast, fast, ""}, sends{"", "", fast, fast, 0, fast, 8, fast, fast, ""},
    network{"", "", fast, fast, 0, fast, fast, fast, 2, ""}, remembers{"", "", fast, fast, 0, 4, fast, fast, fast, ""},
    offloads{"", "", fast, fast, 0, fast, fast, 2, fast, ""};

}  // namespace

BOOST_AUTO_TEST_CASE(products_attention_and_mfu) {
  for (const char* updates : {"1", "2", "5"}) {
    const PlanTableOptions options = small("1", "2", {"--update-freq", updates, "--batch-size", "3", "--bf16"});
    const PlanTable table = make_plan_table(options);
    const double tokens = 3 * 8 * std::atof(updates);
    const StepPrediction step = predict(options, "full", computes);
    // 6 FLOPs for each number of a matrix and token: in blocks 16 * (48 + 16 + 2 * 64), in the head the table of 32 * 16.
    BOOST_TEST(near(step.products, 6 * tokens * (3 * 16 * 192 + 32 * 16)), step.products);
    // Scores and sums over half of T * T: 2 products forward, 5 backward, 3 blocks.
    BOOST_TEST(near(step.attention, 3 * 7 * tokens * 8 * 16), step.attention);
    BOOST_TEST(near(step.total, step.products + step.attention));
    BOOST_TEST(
        near(predict(options, "full", computes, {1, 0.5, 0.25, 1, 1}).attention, 3 * (2 / 0.5 + 5 / 0.25) * tokens * 8 * 16));
    BOOST_TEST(near(tokens_per_second(step, options.train.sharding, options.cluster), 2 * tokens / step.total));
    // The model's FLOPs count biases and norms like matrices, and do not count attention's recomputation in backward.
    const double flops = step.products + 6 * tokens * (3. * (3280 - 16 * 192) + 2 * 16) + 3 * 6 * tokens * 8 * 16;
    BOOST_TEST(near(predicted_mfu(step, *table.model, options.train.sharding, computes), flops / step.total));
  }
  // fp32 has its own peak.
  BOOST_TEST(near(predict(small("1", "1"), "full", computes).products, 6 * 8 * (3 * 16 * 192 + 32 * 16) / 10.));
}

BOOST_AUTO_TEST_CASE(collectives_without_overlap) {
  for (const char* updates : {"1", "2", "5"}) {
    const PlanTableOptions options = small("1", "2", {"--update-freq", updates, "--batch-size", "3", "--bf16"});
    const PlanTable table = make_plan_table(options);
    // Gathers before the first computation and reductions after the last one: all collectives, one after another.
    const StepPrediction sent = predict(options, "full", sends);
    BOOST_TEST(near(sent.communication, static_cast<double>(row_of(table, "full").keeping.traffic.rank.total()) / 8));
    BOOST_TEST(near(sent.total, sent.communication));
    BOOST_TEST(near(sent.exposed, sent.total));
  }
}

BOOST_AUTO_TEST_CASE(rings_use_the_adapters_of_all_ranks) {
  // The traffic of rings out of a node uses the adapters of all its ranks.
  const PlanTableOptions rings = small("2", "2", {"--sum-order", "library"});
  BOOST_TEST(near(predict(rings, "full", network).communication,
                  static_cast<double>(row_of(make_plan_table(rings), "full").keeping.traffic.ring_out_of_node) / (2 * 2)),
             predict(rings, "full", network).communication);
}

BOOST_AUTO_TEST_CASE(canonical_sums_use_no_rings) {
  // Sums in canonical order are not computed by rings.
  const PlanTable canonical = make_plan_table(small("2", "2"));
  double out_of_node = 0;
  for (const CollectiveUse& use : collectives_of_update(plan_of_chosen(canonical, false).plan.update, 1)) {
    const ClusterTraffic traffic = traffic_of_cluster({use}, {4, 1}, canonical.options.cluster);
    out_of_node +=
        static_cast<double>(use.kind == Collective::all_gather ? traffic.ring_out_of_node : traffic.out_of_node) / (2 * 2);
  }
  BOOST_TEST(near(predict(small("2", "2"), "full", network).communication, out_of_node), out_of_node);
}

BOOST_AUTO_TEST_CASE(the_optimizer_reads_and_writes_memory) {
  // AdamW reads and writes parameter and moments, and reads the gradient: 7 numbers. The squares of the gradient are on
  // another stream.
  const StepPrediction memory = predict(small("1", "1"), "none", remembers);
  BOOST_TEST(near(memory.optimizer, 7. * all), memory.optimizer);
  // In bf16, gradient and parameter are widened (2 bytes and 4), and the parameter is rounded again (twice that); the
  // master is the parameter itself, so no copy is written. Gradients are rounded on another stream.
  const PlanTableOptions kept = small("1", "1", {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16"});
  BOOST_TEST(near(predict(kept, "none", remembers).optimizer, (7 + 24 / 4.) * all), predict(kept, "none", remembers).optimizer);
  // With moments in bf16, too, the same 7 numbers are moved, in bf16.
  const PlanTableOptions narrow =
      small("1", "1", {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16", "--optimizer-state-dtype", "bf16"});
  BOOST_TEST(near(predict(narrow, "none", remembers).optimizer, 7 / 2. * all), predict(narrow, "none", remembers).optimizer);
  BOOST_TEST(memory.memory_bound > 0);
}

// The compute stream computes or waits: its parts add up to the update, also if other streams round and add up gradients.
BOOST_AUTO_TEST_CASE(parts_add_up_to_the_update) {
  for (const char* updates : {"1", "2", "3", "8"})
    for (const char* ranks : {"1", "2"})
      for (const char* strategy : {"full", "none"})
        for (const std::vector<const char*>& more : {std::vector<const char*>{"--bf16"},
                                                     {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16"},
                                                     {"--invariant"},
                                                     {"--bf16", "--offload-optimizer", "cpu"}}) {
          std::vector<const char*> words = {"--update-freq", updates};
          words.insert(words.end(), more.begin(), more.end());
          const StepPrediction step = predict(small("1", ranks, words), strategy, known_gpus().front());
          BOOST_TEST(near(step.products + step.attention + step.memory_bound + step.optimizer + step.exposed, step.total),
                     format("{} at {} ranks: {}", strategy, ranks, fmt::join(words, " ")));
        }
}

BOOST_AUTO_TEST_CASE(quantized_matrices_are_expanded_before_products) {
  // A quantized matrix is read, and written in fp32, before each product: forward, in recomputation (without the block's last
  // product, and not of the last block) and backward.
  constexpr double elements = 16 * (48 + 16 + 64 + 64), scales = 16 + 16 + 16 + 64, last = 64 * 16, last_scales = 64;
  const auto expanding = [&](const char* recompute) {
    const auto bound = [&](std::vector<const char*> more) {
      more.insert(more.end(), {"--lora-rank", "2", recompute});
      return predict(small("1", "1", std::move(more)), "none", remembers).memory_bound;
    };
    return 4 * (bound({"--base-dtype", "int8"}) - bound({}));
  };
  const double once = (1 + 4) * elements + 4 * scales, shorter = once - (1 + 4) * last - 4 * last_scales;
  BOOST_TEST(near(expanding("--checkpoint-activations=false"), 3 * 2 * once), expanding("--checkpoint-activations=false"));
  BOOST_TEST(near(expanding("--checkpoint-activations"), 3 * 2 * once + 2 * shorter), expanding("--checkpoint-activations"));
}

BOOST_AUTO_TEST_CASE(offloaded_states_move) {
  // Parameters in bf16, with slots for two blocks: forward loads the root and three blocks, backward loads the first block
  // again. All gradients are unloaded. For the optimizer, gradient and parameters of the last block are loaded again, and fp32
  // copies and moments are loaded; parameters, copies and moments are unloaded. Buffers are multiples of 64 bytes.
  const StepPrediction moved = predict(small("1", "1", {"--bf16", "--offload-params", "cpu"}), "full", offloads);
  constexpr double in_bf16 = 6592;  // a block: 2 * 3280 = 6560
  const double loaded = 2. * root + 4 * in_bf16 + 4. * block + in_bf16 + 3 * 4. * all,
               unloaded = 4. * all + 2. * root + blocks * in_bf16 + 3 * 4. * all;
  BOOST_TEST(near(moved.offload, (loaded + unloaded) / 2), moved.offload);
}

// A disk is slower than the link to the host. The ranks of a node share it, and it reads and writes at the same time.
BOOST_AUTO_TEST_CASE(state_in_a_file_is_priced_by_the_disk) {
  for (const char* updates : {"1", "2", "5"}) {
    PlanTableOptions options = small("1", "1", {"--bf16", "--update-freq", updates, "--device", "cuda"});
    const auto with = [&](const StatePlaces& places, double read, double write) {
      options.train.sharding.plan.places = places;
      return predict(options, "full", offloads, {1, 1, 1, 1, 1}, {read, write});
    };
    const Space *const disk = &planned_on_disk, *const host = &spaces::host;
    const StepPrediction on_host = with({host, host, host}, 0, 0), same = with({disk, disk, host}, 2, 2);
    BOOST_TEST(on_host.disk == 0);
    BOOST_TEST(near(same.offload + same.disk, on_host.offload), same.disk);  // the rate of the link
    BOOST_TEST(near(with({disk, disk, host}, 9, 9).disk, same.disk));        // which is the bound
    const DiskTraffic moved = [&] {
      return disk_traffic(
          plan_sharding(Transformer(named_config(options.train, nullptr), cuda_traits()), options.train.sharding, {1, 1}).plan);
    }();
    const StepPrediction slow = with({disk, disk, host}, 0.5, 0.25);
    const double read = static_cast<double>(moved.read) / 0.5, written = static_cast<double>(moved.written) / 0.25;
    BOOST_TEST(near(slow.disk, read + written), slow.disk);
    BOOST_TEST(slow.total >= std::max(read, written));
    BOOST_TEST(slow.total < read + written);
    options.cluster.ranks_per_node = 2;
    options.train.sharding.plan.places = {disk, disk, host};
    const StepPrediction two = predict(options, "none", offloads, {1, 1, 1, 1, 1}, {1, 0.5});
    options.cluster.ranks_per_node = 1;
    BOOST_TEST(near(two.disk, predict(options, "none", offloads, {1, 1, 1, 1, 1}, {0.5, 0.25}).disk), two.disk);
    BOOST_CHECK_THROW(with({disk, disk, host}, 0, 0), InternalError);
  }
}
