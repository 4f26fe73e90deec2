// The predicted time of an update, computed by hand.
#include <cmath>
#include <cstdlib>

#include <boost/test/unit_test.hpp>

#include "apps/small_plan.hpp"
#include "base/format.hpp"
#include "nn/transformer.hpp"
#include "options/model_options.hpp"
#include "plan/kind.hpp"
#include "plan/prediction.hpp"
#include "support/places.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

// A machine that is infinitely fast in all respects: tests make it slow in one, and the time is that of this one.
constexpr double fast = 1e30;
Rates fast_rates() {
  Rates rates;
  rates.peak = 1;
  for (Rate Rates::*const rate : {&Rates::products, &Rates::fp32_products, &Rates::memory, &Rates::optimizer, &Rates::host_link,
                                  &Rates::ring, &Rates::network_share})
    (rates.*rate).value = fast;
  rates.attention.head_64 = rates.attention.head_128 = equal_rates(fast);
  rates.network = {.ports = 1, .port_bandwidth = fast, .hop = 0, .decay = 0};
  return rates;
}
Rates with(Rate Rates::*rate, double value) {
  Rates rates = fast_rates();
  (rates.*rate).value = value;
  return rates;
}

UpdateSimulation simulation_of(const Transformer& model, const PlanTableOptions& options, const char* strategy) {
  ShardingOptions sharding = options.train.sharding;
  sharding.strategy = strategy;
  return {model, sharding, mesh_shape(find_placement(strategy), options.cluster.ranks(), 2), options.cluster};
}
Transformer model_of(const PlanTableOptions& options) {
  return Transformer(named_config(options.train, nullptr), cuda_traits());
}

StepPrediction predict(const PlanTableOptions& options, const char* strategy, const Rates& rates, const DiskRates& disk = {},
                       SlowRank slow = {}) {
  const Transformer model = model_of(options);
  return simulation_of(model, options, strategy).predict(rates, disk, slow);
}

bool near(double found, double expected) { return std::abs(found - expected) <= 1e-9 * std::abs(expected); }

const Rates sends = with(&Rates::ring, 8), remembers = [] {
  Rates rates = with(&Rates::memory, 4);
  rates.optimizer.value = 4;
  return rates;
}();
const Rates offloads = with(&Rates::host_link, 2);
Rates networked(double port_bandwidth) {
  Rates rates = with(&Rates::network_share, 1);
  rates.network.port_bandwidth = port_bandwidth;
  return rates;
}

}  // namespace

BOOST_AUTO_TEST_CASE(products_attention_and_mfu) {
  for (const char* updates : {"1", "2", "5"}) {
    const PlanTableOptions options = small("1", "2", {"--update-freq", updates, "--batch-size", "3", "--bf16"});
    const PlanTable table = make_plan_table(options);
    const double tokens = 3 * 8 * std::atof(updates);
    Rates computes = with(&Rates::products, 1);
    computes.attention.head_64.fill(1), computes.attention.forward_to_backward = 1;
    const StepPrediction step = predict(options, "full", computes);
    // 6 FLOPs for each number of a matrix and token: in blocks 16 * (48 + 16 + 2 * 64), in the head the table of 32 * 16.
    BOOST_TEST(near(step.products, 6 * tokens * (3 * 16 * 192 + 32 * 16)), step.products);
    // Scores and sums over half of T * T: 2 products forward, 5 backward, 3 blocks.
    BOOST_TEST(near(step.attention, 3 * 7 * tokens * 8 * 16), step.attention);
    BOOST_TEST(near(step.total, step.products + step.attention));
    computes.attention.forward_to_backward = 2;  // together at the same rate: 7 products
    BOOST_TEST(near(predict(options, "full", computes).attention, step.attention));
    BOOST_TEST(near(simulation_of(*table.model, options, "full").tokens_per_second(step), 2 * tokens / step.total));
    // The model's FLOPs count biases and norms like matrices, and do not count attention's recomputation in backward.
    const double flops = step.products + 6 * tokens * (3. * (3280 - 16 * 192) + 2 * 16) + 3 * 6 * tokens * 8 * 16;
    BOOST_TEST(near(simulation_of(*table.model, options, "full").mfu(step, computes), flops / step.total));
  }
}

// A product of M x K and K x N takes (1 + k / K) times as long as its FLOPs: k times 2 M N more.
BOOST_AUTO_TEST_CASE(short_sums_take_longer) {
  const PlanTableOptions options = small("1", "1", {"--batch-size", "3", "--bf16"});
  const double rows = 3 * 8;
  Rates rates = with(&Rates::products, 1);
  const double long_sums = predict(options, "full", rates).products;
  rates.product_half.value = 5;
  // Per block: outputs of the four products forward, their inputs backward, and the gradients of the matrices.
  const double of_block = rows * (48 + 16 + 64 + 16) + rows * (16 + 16 + 16 + 64) + 16 * 192,
               of_head = rows * (32 + 16) + 32 * 16;
  BOOST_TEST(near(predict(options, "full", rates).products - long_sums, 5 * 2 * (3 * of_block + of_head)));
}

// Attention by sequence length and head size.
BOOST_AUTO_TEST_CASE(attention_rates_are_interpolated) {
  const AttentionRates rates{{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}};
  BOOST_TEST(rates.both(8, 64) == 1);
  BOOST_TEST(rates.both(512, 64) == 1);
  BOOST_TEST(near(rates.both(724, 64), 1 + std::log2(724 / 512.)));
  BOOST_TEST(rates.both(1024, 95) == 2);
  BOOST_TEST(rates.both(16384, 96) == 60);
  BOOST_TEST(rates.both(1 << 20, 128) == 60);
  const double forward = rates.forward(512, 64), backward = rates.backward(512, 64);
  BOOST_TEST(near(forward / backward, 1.3));
  BOOST_TEST(near(2 / forward + 5 / backward, 7));  // 7 products at the rate of both
}

// No GPU is said to compute faster than its peak.
BOOST_AUTO_TEST_CASE(rates_are_below_the_peak) {
  for (const GpuFigures& gpu : known_gpus())
    for (const std::size_t cudnn_head_size : {0, 128})
      for (const DType type : {DType::bf16, DType::f32}) {
        DeviceTraits traits = cuda_traits();
        traits.cudnn_head_size = cudnn_head_size;
        const Transformer model(named_config(small("1", "1").train, nullptr), traits);
        const Rates rates = rates_of(gpu, model, type, network_of(gpu));
        for (const auto* const table : {&rates.attention.head_64, &rates.attention.head_128})
          for (const double rate : *table) BOOST_TEST((rate > 0 && rate < rates.peak), gpu.name);
        BOOST_TEST((rates.products > 0 && rates.products <= rates.peak), gpu.name);
        BOOST_TEST((rates.memory < gpu.memory_bandwidth && rates.optimizer < gpu.memory_bandwidth), gpu.name);
      }
}

// Launches by the host limit an operation only if its work is shorter.
BOOST_AUTO_TEST_CASE(launches_limit_short_operations) {
  Rates rates = with(&Rates::products, 10);
  rates.launch.value = 0.5;
  BOOST_TEST(time_of({.product_flops = 30, .launches = 4}, rates, 1).total == 3);
  BOOST_TEST(time_of({.product_flops = 10, .launches = 4}, rates, 1).total == 2);
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

// By hand: 1, 2 and 8 nodes of 4 ranks; the slowest link limits a ring.
BOOST_AUTO_TEST_CASE(a_ring_has_bandwidth_and_latency) {
  Rates rates = fast_rates();
  rates.ring.value = 1000, rates.call.value = 1, rates.hop.value = 2, rates.network_share.value = 0.5;
  rates.network = {.ports = 2, .port_bandwidth = 100, .hop = 10, .decay = 0.5};
  const Cluster one{1, 4, Between::nodes, SumOrder::library}, two{2, 4, Between::nodes, SumOrder::library},
      eight{8, 4, Between::nodes, SumOrder::library};
  const CollectiveUse gather{Collective::all_gather, GroupAxis::shard, 100, 4, 4, 1},
      sum{Collective::all_reduce, GroupAxis::shard, 800, 4, 2, 1},
      between{Collective::all_gather, GroupAxis::replicate, 100, 4, 4, 1};
  // Each of 4 ranks sends 3 shards of 400 bytes.
  BOOST_TEST(near(time_of(gather, {4, 1}, one, rates).seconds, 1 + 3 * 2 + 1200 / 1000.));
  // 8 ranks on 2 nodes: 6 hops inside and 1 between; a node sends at half of two ports' rates.
  BOOST_TEST(near(time_of(gather, {8, 1}, two, rates).seconds, 1 + 6 * 2 + 10 + 2800 / 100.));
  // On 8 nodes the bandwidth is half of that.
  BOOST_TEST(near(time_of(gather, {32, 1}, eight, rates).seconds, 1 + 24 * 2 + 7 * 10 + 12400 / 50.));
  // An all-reduce goes around twice, with summands of 2 bytes and then sums of 4.
  BOOST_TEST(near(time_of(sum, {8, 1}, two, rates).seconds, 2 * (1 + 3 * 2 + 10) + 7 / 8. * 800 * 6 / 100));
  // Between replicas: each rank of a node has a ring of its own, with a quarter of the ports.
  BOOST_TEST(near(time_of(between, {4, 2}, two, rates).seconds, 1 + 10 + 400 / 25.));
  BOOST_TEST(time_of(between, {8, 1}, two, rates).seconds == 0);  // a group of one rank
  // Groups of 6 on nodes of 4: the worst of them is on three nodes, and shares their ports with another one.
  BOOST_TEST(near(time_of(gather, {6, 2}, {3, 4, Between::nodes, SumOrder::library}, rates).seconds,
                  1 + 3 * 2 + 2 * 10 + 2000 / (50 / std::sqrt(1.5))));
  // Copies around a reduction, by the bandwidth of memory.
  rates.copies.value = 3, rates.memory.value = 30;
  BOOST_TEST(near(time_of({Collective::reduce_scatter, GroupAxis::shard, 100, 4, 2, 1}, {4, 1}, one, rates).seconds,
                  1 + 3 * 2 + 600 / 1000. + 3 * 400 / 30.));
  // Computing loses half of the interference, and the rest in proportion to the ring's rate.
  rates.interference.value = 0.4;
  BOOST_TEST(near(time_of(gather, {4, 1}, one, rates).slows, 0.4));
  BOOST_TEST(near(time_of(gather, {8, 1}, two, rates).slows, 0.4 * (0.5 + 0.5 * 0.1)));
}

// Sums in canonical order are computed by messages from rank to rank.
BOOST_AUTO_TEST_CASE(canonical_sums_use_no_rings) {
  const PlanTable canonical = make_plan_table(small("2", "2")),
                  rings = make_plan_table(small("2", "2", {"--sum-order", "library"}));
  double out_of_node = 0;
  for (const CollectiveUse& use : collectives_of_update(plan_of_chosen(canonical, false).plan.update, 1)) {
    const ClusterTraffic traffic = traffic_of_cluster({use}, {4, 1}, canonical.options.cluster);
    out_of_node += static_cast<double>(use.kind == Collective::all_gather ? traffic.ring_out_of_node : traffic.out_of_node) / 4;
  }
  BOOST_TEST(near(predict(small("2", "2"), "full", networked(4)).communication, out_of_node), out_of_node);
  // Like rings, messages lose bandwidth on more than two nodes.
  Rates decaying = networked(4);
  decaying.network.decay = 1;
  const StepPrediction on_two = predict(small("2", "2"), "full", decaying),
                       on_four = predict(small("4", "2"), "full", decaying);
  BOOST_TEST(near(on_two.communication, out_of_node));
  BOOST_TEST(near(on_four.communication, 2 * predict(small("4", "2"), "full", networked(4)).communication));
  // In rings, but for the uneven parts of small all-reduces.
  const double ring = static_cast<double>(row_of(rings, "full").keeping.traffic.ring_out_of_node) / 4,
               predicted = predict(small("2", "2", {"--sum-order", "library"}), "full", networked(4)).communication;
  BOOST_TEST(std::abs(predicted / ring - 1) < 1e-3, predicted);
}

BOOST_AUTO_TEST_CASE(the_optimizer_reads_and_writes_memory) {
  // AdamW reads and writes parameter and moments, and reads the gradient: 7 numbers. The squares of the gradient are on
  // another stream.
  const StepPrediction memory = predict(small("1", "1"), "none", remembers);
  BOOST_TEST(near(memory.optimizer, 7. * all), memory.optimizer);
  // In bf16, gradient and parameter are widened (2 bytes and 4), and the parameter is rounded again (4 bytes read and written,
  // 2 written); the master is the parameter itself, so no copy is written. Gradients are rounded on another stream.
  const PlanTableOptions kept = small("1", "1", {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16"});
  BOOST_TEST(near(predict(kept, "none", remembers).optimizer, (7 + 22 / 4.) * all), predict(kept, "none", remembers).optimizer);
  // With moments in bf16, too, the same 7 numbers are moved, in bf16.
  const PlanTableOptions narrow =
      small("1", "1", {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16", "--optimizer-state-dtype", "bf16"});
  BOOST_TEST(near(predict(narrow, "none", remembers).optimizer, 7 / 2. * all), predict(narrow, "none", remembers).optimizer);
  BOOST_TEST(memory.memory_bound > 0);
}

// kernels::round_at_random() reads and writes the fp32 numbers, writes the bf16 ones, and reads them if it adds to them.
BOOST_AUTO_TEST_CASE(a_rounding_moves_each_number_once_in_each_direction) {
  const Transformer model(arch_config("gpt2"));
  const Layout layout(model.parameters(), wrap_parameters(model.parameters(), {}), 1);
  const StageWork stages(model, layout.trained(), {1, 8}, DType::bf16);
  const OptimizerOptions adamw;
  const Costing costing{layout, stages, adamw};
  for (const bool adds : {false, true})
    for (const auto& [kind, fp32] : {std::pair(&kinds::round_master, 2), std::pair(&kinds::round_gradient, 2),
                                     std::pair(&kinds::round_gradient_and_square, 1)}) {
      Operation op{.kind = kind, .stream = StreamId::compute, .operands = {}};
      op.accumulate = adds, op.count = 100, op.type = DType::bf16;
      BOOST_TEST(kind->cost(op, costing).memory_bytes == 100 * (4 * fp32 + (adds ? 4 : 2)));
    }
}

namespace {

Rates h100(const PlanTableOptions& options) {
  const GpuFigures& gpu = *figures_of("NVIDIA H100 80GB HBM3 (");
  return rates_of(gpu, model_of(options), options.train.sharding.types.parameter, network_of(gpu));
}

}  // namespace

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
          const StepPrediction step = predict(small("1", ranks, words), strategy, h100(small("1", ranks, words)));
          BOOST_TEST(near(step.products + step.attention + step.memory_bound + step.recomputation + step.optimizer +
                              step.slowed + step.exposed + step.host,
                          step.total),
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
      const StepPrediction step = predict(small("1", "1", std::move(more)), "none", remembers);
      return step.memory_bound + step.recomputation;
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
      return predict(options, "full", offloads, {read, write});
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
    const StepPrediction two = predict(options, "none", offloads, {1, 0.5});
    options.cluster.ranks_per_node = 1;
    BOOST_TEST(near(two.disk, predict(options, "none", offloads, {0.5, 0.25}).disk), two.disk);
    BOOST_CHECK_THROW(with({disk, disk, host}, 0, 0), InternalError);
  }
}

// The optimizer works once per update: sums of gradients of all micro-batches are not part of its time.
BOOST_AUTO_TEST_CASE(the_optimizer_works_once_per_update) {
  const auto optimizer = [](const char* updates) {
    const PlanTableOptions options = small("1", "2",
                                           {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16",
                                            "--optimizer-state-dtype", "bf16", "--update-freq", updates});
    return predict(options, "full", h100(options)).optimizer;
  };
  const double one = optimizer("2");
  BOOST_TEST(one > 0);
  BOOST_TEST(near(optimizer("3"), one));
  BOOST_TEST(near(optimizer("128"), one));
}

BOOST_AUTO_TEST_CASE(recomputation_is_a_part_of_its_own) {
  const PlanTableOptions kept = small("1", "2", {"--bf16"}), again = small("1", "2", {"--bf16", "--checkpoint-activations"});
  const StepPrediction one = predict(kept, "full", h100(kept)), more = predict(again, "full", h100(again));
  BOOST_TEST(one.recomputation == 0);
  BOOST_TEST(more.recomputation > 0);
  BOOST_TEST(near(more.products, one.products));
}

// Collectives slow what is computed at the same time; without interference nothing is slowed.
BOOST_AUTO_TEST_CASE(collectives_slow_what_is_computed) {
  const PlanTableOptions options = small("1", "2", {"--bf16", "--batch-size", "100000"});
  Rates rates = h100(options);
  const StepPrediction step = predict(options, "full", rates);
  BOOST_TEST(step.slowed > 0);
  rates.interference.value = 0;
  const StepPrediction free = predict(options, "full", rates);
  BOOST_TEST(std::abs(free.slowed) < 1e-9 * free.total);
  BOOST_TEST(free.total < step.total);
}

// All ranks wait for a slow one, except those whose collectives do not need it until the end.
BOOST_AUTO_TEST_CASE(a_slow_rank_slows_those_that_wait_for_it) {
  Rates rates = fast_rates();
  rates.products.value = 1;
  for (const char* strategy : {"full", "grad-op", "none", "hybrid"}) {
    const PlanTableOptions options = small("1", "4", {"--bf16"});
    const StepPrediction usual = predict(options, strategy, rates), slow = predict(options, strategy, rates, {}, {2, 1.5});
    BOOST_TEST(near(slow.total, 1.5 * usual.total), strategy);
    BOOST_TEST(near(slow.products, 1.5 * usual.products), strategy);  // the parts are those of the slow rank
    BOOST_TEST(std::abs(slow.exposed) < 1e-9 * usual.total, strategy);
    BOOST_TEST(near(predict(options, strategy, rates, {}, {2, 1}).total, usual.total), strategy);
  }
}

// With a slow rank, too, no part is negative, and they add up to the update, for any number of micro-batches.
BOOST_AUTO_TEST_CASE(parts_of_a_slow_rank) {
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid"})
    for (const char* updates : {"1", "2", "17"})
      for (const double factor : {1.05, 1.2, 3.0}) {
        const PlanTableOptions options = small("1", "4", {"--bf16", "--batch-size", "20000", "--update-freq", updates});
        const StepPrediction step = predict(options, strategy, h100(options), {}, {1, factor});
        const double parts[] = {step.products,  step.attention, step.memory_bound, step.recomputation,
                                step.optimizer, step.slowed,    step.exposed,      step.host};
        double sum = 0;
        for (const double part : parts) {
          BOOST_TEST(part > -1e-9 * step.total, strategy << ", " << updates << ", " << factor);
          sum += part;
        }
        BOOST_TEST(near(sum, step.total));
      }
}

// A faster network does not make an update slower. Sums in canonical order may be limited by the links in a node.
BOOST_AUTO_TEST_CASE(a_faster_network_is_not_slower) {
  for (const char* strategy : {"full", "none", "hybrid"}) {
    const PlanTableOptions options =
        parse({"--arch", "gpt2", "--decoder-layers", "4", "--decoder-embed-dim", "1024", "--decoder-attention-heads", "16",
               "--vocab-size", "512", "--bf16", "--tokens-per-sample", "256", "--nodes", "4", "--ranks-per-node", "8"});
    Rates rates = h100(options);
    double last = 1e30;
    for (double port = 5e9; port < 100e9; port += 5e9) {
      rates.network.port_bandwidth = port;
      const double total = predict(options, strategy, rates).total;
      BOOST_TEST(total <= last * 1.001, strategy << ", " << port);
      last = total;
    }
  }
}

// One thread does all: computing and collectives one after another.
BOOST_AUTO_TEST_CASE(one_thread_does_all) {
  const PlanTableOptions options = small("1", "2", {"--bf16"});
  Rates rates = h100(options);
  rates.queues = Queues::one;
  const StepPrediction one = predict(options, "full", rates);
  BOOST_TEST(near(one.exposed, one.communication));
  BOOST_TEST(one.slowed < 1e-9 * one.total);
  rates.queues = Queues::thread;
  const StepPrediction two = predict(options, "full", rates);
  BOOST_TEST(two.total < one.total);
}

// Of many GPUs the slowest is slower than that of 8: the expected maxima of 8, 128 and 512 normal numbers are 1.42, 2.59 and
// 3.05. Blom's formula is off by up to 0.03.
BOOST_AUTO_TEST_CASE(the_slowest_of_many) {
  BOOST_TEST(slowest_of(1) == 0);
  BOOST_TEST(slowest_of(8) == 0);
  BOOST_TEST(std::abs(slowest_of(128) - (2.59 - 1.42)) < 0.04);
  BOOST_TEST(std::abs(slowest_of(512) - (3.05 - 1.42)) < 0.04);
}

BOOST_AUTO_TEST_CASE(operations_have_times_and_a_critical_path) {
  const PlanTableOptions options = small("1", "2", {"--bf16"});
  const Rates rates = h100(options);
  const Transformer model = model_of(options);
  const UpdateSimulation simulation = simulation_of(model, options, "full");
  double end = 0, critical = 0;
  for (const SimulatedOperation& op : simulation.operations(rates)) {
    end = std::max(end, op.time.end);
    if (op.is_critical) critical += op.time.end - op.time.begin;
  }
  BOOST_TEST(near(end, simulation.predict(rates).total - rates.update));
  BOOST_TEST(near(critical, end));
}
