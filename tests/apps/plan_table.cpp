// fsdp-plan: numbers computed by hand, and the same numbers from runs on the threads communicator.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "comm/threads/threads.hpp"
#include "comm/topology.hpp"
#include "fsdp-plan/plan_table.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/threads.hpp"
#include "support/by_nodes.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "train/origin.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

PlanTableOptions parse(std::vector<const char*> arguments) {
  PlanTableOptions options;
  OptionTable table = plan_option_table(options);
  arguments.insert(arguments.begin(), "fsdp-plan");
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  return options;
}

/// GPT-2 of 3 blocks. Elements: root 32*16 + 8*16 + 2*16 = 672 (embeddings, positions, norm); a block 2*32 (norms)
/// + 16*48 + 48 + 16*16 + 16 (attention) + 16*64 + 64 + 64*16 + 16 (feed-forward) = 3280. All tensors are multiples of 16.
PlanTableOptions small(const char* nodes, const char* ranks_per_node, std::vector<const char*> more = {}) {
  more.insert(more.end(),
              {"--arch", "gpt2", "--decoder-layers", "3", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2",
               "--vocab-size", "32", "--tokens-per-sample", "8", "--nodes", nodes, "--ranks-per-node", ranks_per_node});
  return parse(more);
}
constexpr std::size_t root = 672, block = 3280, blocks = 3, all = root + blocks * block;
constexpr std::size_t norm_words = kernels::ExactSum::words;

const PlanRow& row_of(const PlanTable& table, std::string_view strategy) {
  return *std::find_if(table.rows.begin(), table.rows.end(),
                       [&](const PlanRow& row) { return row.placement->name == strategy; });
}

std::uint64_t sent(const PlanVariant& variant, Collective kind) {
  return variant.traffic.rank.bytes_sent[static_cast<std::size_t>(kind)];
}

void check_states(const PlanTable& table, const char* strategy, std::size_t parameters, std::size_t gradients,
                  std::size_t optimizer_state, std::size_t gathered, std::size_t unreduced) {
  BOOST_TEST_CONTEXT(strategy) {
    for (const bool recompute : {false, true}) {
      const MemoryAccount& m = row_of(table, strategy).variant(recompute).memory;
      BOOST_TEST(m.of(BufferRole::parameters) == parameters);
      BOOST_TEST(m.of(BufferRole::gradients) == gradients);
      BOOST_TEST(m.of(BufferRole::optimizer_state) == optimizer_state);
      BOOST_TEST(m.of(BufferRole::gathered_parameters) == gathered);
      BOOST_TEST(m.of(BufferRole::unreduced_gradients) == unreduced);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(one_rank_by_hand) {
  const PlanTable table = make_plan_table(small("1", "1"));
  BOOST_TEST(table.rows.size() == 6u);
  BOOST_TEST(table.model.parameter_count() == all);
  check_states(table, "none", 4 * all, 4 * all, 8 * all, 0, 0);
  // On a shard axis of one rank nothing is gathered or scattered.
  check_states(table, "full", 4 * all, 4 * all, 8 * all, 0, 0);
  check_states(table, "hybrid-grad-op", 4 * all, 4 * all, 8 * all, 0, 0);
  for (const PlanRow& row : table.rows) {
    BOOST_TEST(row.keeping.traffic.rank.total() == 0u);
    BOOST_TEST(row.keeping.memory.staging <= 4 * 4096u);  // a page for each group of one
    BOOST_TEST(row.chosen == (row.placement->name == "full"));
  }
  const std::string text = describe(table);
  CHECK_CONTAINS(text, "so all strategies are equal");
  CHECK_CONTAINS(text, "> full ");
  BOOST_TEST(text.find("hybrid-grad-op") == std::string::npos);
  // The residual stream before and after each block and its gradient, [8, 16] each, and what blocks save: of all, or of one.
  const std::size_t saved = (table.model.saved_numel({1, 8}) * 4 + 63) / 64 * 64;
  const PlanRow& none = row_of(table, "none");
  BOOST_TEST(none.keeping.memory.of(BufferRole::activations) == (blocks + 2) * 512 + blocks * saved);
  BOOST_TEST(none.recomputing.memory.of(BufferRole::activations) == (blocks + 2) * 512 + saved);
}

BOOST_AUTO_TEST_CASE(two_nodes_of_two_by_hand) {
  const PlanTable table = make_plan_table(small("2", "2"));
  // Flat buffers are cut into shards of multiples of 16: over 4 ranks 704 and 3328 elements, over 2 ranks 672 and 3296.
  constexpr std::size_t all4 = 704 + 3 * 3328, all2 = 672 + 3 * 3296;
  check_states(table, "full", all4, all4, 2 * all4, 4 * (704 + 2 * 3328), 4 * (704 + 2 * 3328));
  check_states(table, "grad-op", all4, all4, 2 * all4, 4 * all4, 4 * (704 + 2 * 3328));
  check_states(table, "optim", 4 * all4, all4, 2 * all4, 0, 4 * all4);
  check_states(table, "none", 4 * all, 4 * all, 8 * all, 0, 0);
  check_states(table, "hybrid", 2 * all2, 2 * all2, 4 * all2, 4 * (672 + 2 * 3296), 4 * (672 + 2 * 3296));
  check_states(table, "hybrid-grad-op", 2 * all2, 2 * all2, 4 * all2, 4 * all2, 4 * (672 + 2 * 3296));

  BOOST_REQUIRE(norm_words == 58u);  // over 4 ranks 15, 15, 14, 14
  const PlanVariant& full = row_of(table, "full").keeping;
  const std::uint64_t gathers = 3 * (704 + 5 * 3328),
                      scatters = 3 * (704 + 3 * 3328);  // root 1, blocks 2 2 1; (4-1)/4 of 4 bytes
  BOOST_TEST(sent(full, Collective::all_gather) == gathers);
  BOOST_TEST(sent(full, Collective::reduce_scatter) == scatters);
  // By nodes: a rank sends one of its three shards to the other node. The norm is all-reduced within a node and then between
  // nodes, each time with 29 words to be summed and 29 sums. For the loss, three numbers, a rank sends at most three numbers
  // within and between nodes.
  BOOST_TEST(sent(full, Collective::all_reduce) == 2 * (8 * 58 + 8 * 3));
  BOOST_TEST(full.traffic.rank.within_node == (gathers + scatters) / 3 * 2 + 8 * 58 + 8 * 3);
  BOOST_TEST(full.traffic.rank.between_nodes == (gathers + scatters) / 3 + 8 * 58 + 8 * 3);
  BOOST_TEST(full.traffic.out_of_node == 2 * full.traffic.rank.between_nodes);
  BOOST_TEST(full.traffic.ring_out_of_node == gathers + scatters + 8 * 88 + 8 * 5);  // only from rank 1

  const PlanVariant& hybrid = row_of(table, "hybrid").keeping;
  const std::uint64_t in_group = 2 * (672 + 5 * 3296) + 2 * all2, replicas = 4 * all2 / 2;
  BOOST_TEST(sent(hybrid, Collective::all_gather) + sent(hybrid, Collective::reduce_scatter) == in_group);
  BOOST_TEST(sent(hybrid, Collective::all_reduce) == replicas + 8 * 58 + 8 * 6);
  BOOST_TEST(hybrid.traffic.rank.within_node == in_group + 8 * 58 + 8 * 3);
  BOOST_TEST(hybrid.traffic.rank.between_nodes == replicas + 8 * 3);
  BOOST_TEST(hybrid.traffic.out_of_node == 2 * replicas + 8 * 6);

  // From rank to rank: one of a rank's three peers is on its node. For the norm rank 0 sends 15 words to be summed and 15 sums
  // to each; for the loss 1 and 1. Ranks 2 and 3, which sum less, send 2 and 1 (or 0).
  const PlanTable by_messages = make_plan_table(small("2", "2", {"--comm", "mpi"}));
  const PlanVariant& flat = row_of(by_messages, "full").keeping;
  BOOST_TEST(sent(flat, Collective::all_gather) == gathers);
  BOOST_TEST(sent(flat, Collective::all_reduce) == 8 * (58 - 15 + 3 * 15) + 8 * 5);
  BOOST_TEST(flat.traffic.rank.within_node == (gathers + scatters) / 3 + 8 * 30 + 8 * 2);
  BOOST_TEST(flat.traffic.rank.between_nodes == (gathers + scatters) / 3 * 2 + 8 * 58 + 8 * 4);
  BOOST_TEST(flat.traffic.out_of_node == 2 * ((gathers + scatters) / 3 * 2 + 8 * 58) + 8 * 6);
  BOOST_TEST(flat.traffic.ring_out_of_node == full.traffic.ring_out_of_node);
  const PlanVariant& flat_hybrid = row_of(by_messages, "hybrid").keeping;
  BOOST_TEST(sent(flat_hybrid, Collective::all_reduce) == replicas + 8 * 58 + 8 * 5);
  BOOST_TEST(flat_hybrid.traffic.rank.between_nodes == replicas + 8 * 4);
}

BOOST_AUTO_TEST_CASE(three_nodes_of_one_by_hand) {
  const PlanTable table = make_plan_table(small("3", "1"));
  constexpr std::size_t all3 = 672 + 3 * 3312;
  check_states(table, "full", 4 * all3 / 3, 4 * all3 / 3, 8 * all3 / 3, 4 * (672 + 2 * 3312), 4 * (672 + 2 * 3312));
  check_states(table, "hybrid", 4 * all, 4 * all, 8 * all, 0, 0);  // groups of one
  const PlanVariant& none = row_of(table, "none").keeping;
  // Shares of 224 in the root; 1094, 1093, 1093 in a block; the loss.
  BOOST_TEST(sent(none, Collective::all_reduce) == 4 * (4 * 224 + 3 * (3280 + 1094)) + 8 * 4);
  BOOST_TEST(none.traffic.rank.within_node == 0u);
  BOOST_TEST(none.traffic.rank.between_nodes == sent(none, Collective::all_reduce));
  BOOST_TEST(none.traffic.out_of_node == none.traffic.rank.between_nodes);
  const PlanVariant& full = row_of(table, "full").keeping;
  BOOST_TEST(sent(full, Collective::all_gather) == 4 * 2 * (672 + 5 * 3312) / 3);
}

namespace {

/// The traffic and memory of each rank in one update of a strategy.
struct Measured {
  std::array<std::uint64_t, collective_kinds> bytes_sent{};
  std::size_t peak = 0, planned = 0;
};

std::array<std::uint64_t, collective_kinds> bytes_sent(const ShardedModel& sharded, const Communicator& world) {
  std::array<std::uint64_t, collective_kinds> sum{};
  for (const Communicator* comm : {&world, static_cast<const Communicator*>(sharded.mesh().shard.get()),
                                   static_cast<const Communicator*>(sharded.mesh().replicate.get())})
    for (std::size_t k = 0; k < collective_kinds; ++k) sum[k] += comm->traffic().bytes_sent[k];
  return sum;
}

std::vector<Measured> run_update(const PlanTableOptions& options, const PlanRow& row, bool recompute) {
  ShardingOptions sharding = options.train.sharding;
  sharding.strategy = row.placement->name;
  sharding.shard_group_size = row.mesh.shard;
  sharding.plan.checkpoint_activations = recompute;
  std::vector<Measured> all_ranks(static_cast<std::size_t>(options.cluster.ranks()));
  run_ranks(
      options.cluster.ranks(),
      [&](Communicator& world) {
        kernels::set_threads(static_cast<int>(options.train.threads));
        const auto device = make_cpu_device();
        ShardedModel sharded(named_config(options.train, nullptr), sharding, world);
        Executor& executor = sharded.allocate(*device);
        executor.initialize_parameters(1);
        executor.publish_parameters();
        const auto before = bytes_sent(sharded, world);
        const std::size_t rows = sharding.batch.rows();
        executor.run_update(
            [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
              std::fill_n(inputs, rows, 3);
              std::fill_n(targets, rows, 4);
            },
            {.learning_rate = 1e-3, .tokens = static_cast<double>(rows * sharding.plan.micro_batches * all_ranks.size())});
        Measured& mine = all_ranks[static_cast<std::size_t>(world.rank())];
        mine.bytes_sent = bytes_sent(sharded, world);
        for (std::size_t k = 0; k < collective_kinds; ++k) mine.bytes_sent[k] -= before[k];
        mine.peak = executor.peak_bytes();
        mine.planned = sharded.plan().peak_bytes;
        world.barrier();
      },
      options.cluster.ranks_per_node);
  return all_ranks;
}

}  // namespace

// A plan for GPUs on a machine without GPUs: staging for NCCL's sums, and an allowance for driver and libraries.
BOOST_AUTO_TEST_CASE(a_plan_for_gpus) {
  const PlanTable cpu = make_plan_table(small("2", "2")), gpu = make_plan_table(small("2", "2", {"--device", "cuda"}));
  for (const bool recompute : {false, true}) {
    const MemoryAccount &there = row_of(gpu, "full").variant(recompute).memory,
                        &here = row_of(cpu, "full").variant(recompute).memory;
    BOOST_TEST(there.staging == staging_on_gpu(gpu.options.train.comm, plan_of_chosen(gpu, recompute).plan, {4, 1}));
    BOOST_TEST(there.gemm == 32u << 20);
    BOOST_TEST(there.context == 3ul << 29);
    BOOST_TEST(here.context == 0u);
    const std::size_t tokens = 2 * 2 * 8 * 4;  // two updates: inputs and targets of a sequence of 8
    BOOST_TEST(here.batch >= tokens);
    BOOST_TEST(here.batch < tokens + 1024);  // and the results
    BOOST_TEST(here.total() == here.plan + here.staging + here.gemm + here.batch);
    BOOST_TEST(there.total() == there.plan + there.staging + there.gemm + there.context);
    for (const BufferRole role : {BufferRole::parameters, BufferRole::gradients, BufferRole::optimizer_state,
                                  BufferRole::gathered_parameters, BufferRole::activations})
      BOOST_TEST(there.of(role) == here.of(role));
    BOOST_TEST(there.of(BufferRole::scratch) > here.of(BufferRole::scratch));  // sums over rows have more partitions
  }
  BOOST_TEST((row_of(gpu, "full").keeping.traffic == row_of(cpu, "full").keeping.traffic));
  CHECK_CONTAINS(describe(gpu), "a GPU per rank");
  CHECK_CONTAINS(explain(gpu), "driver and libraries");
}

namespace {

StepPrediction predict(const PlanTableOptions& options, const char* strategy, const GpuFigures& gpu,
                       const Efficiency& efficiency = {1, 1, 1, 1, 1}) {
  ShardingOptions sharding = options.train.sharding;
  sharding.strategy = strategy;
  const Transformer model(named_config(options.train, nullptr), cuda_traits());
  return predict_update(model, sharding, mesh_shape(find_placement(strategy), options.cluster.ranks(), 2), options.cluster, gpu,
                        efficiency);
}

bool near(double found, double expected) { return std::abs(found - expected) <= 1e-9 * std::abs(expected); }

}  // namespace

// For a GPU that is infinitely fast in all respects except one, the time is that of this one.
BOOST_AUTO_TEST_CASE(a_prediction_by_hand) {
  constexpr double fast = 1e30;
  const GpuFigures computes{"", "", 1, 10, 0, fast, fast, fast, fast, ""},
      sends{"", "", fast, fast, 0, fast, 8, fast, fast, ""}, network{"", "", fast, fast, 0, fast, fast, fast, 2, ""},
      remembers{"", "", fast, fast, 0, 4, fast, fast, fast, ""}, offloads{"", "", fast, fast, 0, fast, fast, 2, fast, ""};
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
    BOOST_TEST(near(predicted_mfu(step, table.model, options.train.sharding, computes), flops / step.total));
    // Gathers before the first computation and reductions after the last one: all collectives, one after another.
    const StepPrediction sent = predict(options, "full", sends);
    BOOST_TEST(near(sent.communication, static_cast<double>(row_of(table, "full").keeping.traffic.rank.total()) / 8));
    BOOST_TEST(near(sent.total, sent.communication));
    BOOST_TEST(near(sent.exposed, sent.total));
  }
  // fp32 has its own peak.
  BOOST_TEST(near(predict(small("1", "1"), "full", computes).products, 6 * 8 * (3 * 16 * 192 + 32 * 16) / 10.));
  // The traffic of rings out of a node uses the adapters of all its ranks.
  const PlanTableOptions rings = small("2", "2", {"--sum-order", "library"});
  BOOST_TEST(near(predict(rings, "full", network).communication,
                  static_cast<double>(row_of(make_plan_table(rings), "full").keeping.traffic.ring_out_of_node) / (2 * 2)),
             predict(rings, "full", network).communication);
  // Sums in canonical order are not computed by rings.
  const PlanTable canonical = make_plan_table(small("2", "2"));
  double out_of_node = 0;
  for (const CollectiveUse& use : collectives_of_update(plan_of_chosen(canonical, false).plan.update, 1)) {
    const ClusterTraffic traffic = traffic_of_cluster({use}, {4, 1}, canonical.options.cluster);
    out_of_node +=
        static_cast<double>(use.kind == Collective::all_gather ? traffic.ring_out_of_node : traffic.out_of_node) / (2 * 2);
  }
  BOOST_TEST(near(predict(small("2", "2"), "full", network).communication, out_of_node), out_of_node);
  // AdamW reads and writes parameter and moments, and reads the gradient: 7 numbers; squares read it once more.
  const StepPrediction memory = predict(small("1", "1"), "none", remembers);
  BOOST_TEST(near(memory.optimizer, 8. * all), memory.optimizer);
  // In bf16, gradient and parameter are widened (2 bytes and 4) and rounded again (three times that); the master is the
  // parameter itself, so no copy is written.
  const PlanTableOptions kept = small("1", "1", {"--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16"});
  BOOST_TEST(near(predict(kept, "none", remembers).optimizer, (8 + 48 / 4.) * all), predict(kept, "none", remembers).optimizer);
  BOOST_TEST(memory.memory_bound > 0);
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
  // Parameters in bf16, with slots for two blocks: forward loads the root and three blocks, backward loads the first block
  // again. All gradients are unloaded. For the optimizer, gradient and parameters of the last block are loaded again, and fp32
  // copies and moments are loaded; parameters, copies and moments are unloaded. Buffers are multiples of 64 bytes.
  const StepPrediction moved = predict(small("1", "1", {"--bf16", "--offload-params", "cpu"}), "full", offloads);
  constexpr double in_bf16 = 6592;  // a block: 2 * 3280 = 6560
  const double loaded = 2. * root + 4 * in_bf16 + 4. * block + in_bf16 + 3 * 4. * all,
               unloaded = 4. * all + 2. * root + blocks * in_bf16 + 3 * 4. * all;
  BOOST_TEST(near(moved.offload, (loaded + unloaded) / 2), moved.offload);
}

BOOST_AUTO_TEST_CASE(a_prediction_is_printed_as_one) {
  const PlanTable table = make_plan_table(small("1", "2", {"--gpu", "h100"}));
  BOOST_TEST((table.model.device() == cuda_traits()));
  BOOST_TEST(table.options.memory_limit == 80'000'000'000u);
  CHECK_CONTAINS(describe(table), "not measured");
  CHECK_CONTAINS(describe(table), "NVIDIA H100 Tensor Core GPU datasheet");
  for (const AssumedEfficiency& assumed : assumed_efficiencies) {  // printed, and the same in the documentation
    CHECK_CONTAINS(describe(table), format("{:.0f} % of {}: {}", 100 * assumed.fraction, assumed.of, assumed.source));
    CHECK_CONTAINS(read_file(FSDP_DOCS "/gpu.md"),
                   format("| {} | {:.0f} % of {} | {} |", assumed.work, 100 * assumed.fraction, assumed.of, assumed.source));
  }
  const nlohmann::json json = to_json(table);
  BOOST_TEST(json["gpu"]["measured"] == false);
  for (const auto& strategy : json["strategies"])
    for (const char* variant : {"keeping", "recomputing"}) {
      BOOST_TEST(strategy[variant]["fits"] == true);
      BOOST_TEST(strategy[variant]["prediction"]["mfu"].get<double>() > 0);
      BOOST_TEST(strategy[variant]["prediction"]["mfu"].get<double>() < 0.7);
    }
  BOOST_TEST(to_json(make_plan_table(small("1", "2")))["gpu"].is_null());
  for (const GpuFigures& gpu : known_gpus()) {
    BOOST_TEST(figures_of(std::string(gpu.product) + " (compute capability 9.0, 80 GiB), cuBLASLt 13.1.0") == &gpu);
    BOOST_TEST(gpu.flops_fp32 < gpu.flops_16bit);
    // Links are NVLink, or the PCIe link to the host. Only GPUs with NVLink have figures of a network.
    const bool has_nvlink = gpu.link_bandwidth > gpu.host_bandwidth;
    BOOST_TEST((has_nvlink || gpu.link_bandwidth == gpu.host_bandwidth), gpu.name);
    BOOST_TEST((gpu.network_bandwidth > 0) == has_nvlink, gpu.name);
    BOOST_TEST((gpu.source.find("PCIe") == std::string_view::npos) == has_nvlink, gpu.name);
  }
  // Names with the same beginning may be different GPUs.
  BOOST_TEST(figures_of("NVIDIA H200 NVL (compute capability 9.0, 141 GiB)")->name == "h200-nvl");
  BOOST_TEST(figures_of("NVIDIA H200 (compute capability 9.0, 141 GiB)")->name == "h200");
  BOOST_TEST(figures_of("NVIDIA H200 MIG 1g.18gb (compute capability 9.0, 18 GiB)") == nullptr);
}

namespace {

void check_against_runs(const PlanTableOptions& options) {
  const PlanTable table = make_plan_table(options);
  for (const PlanRow& row : table.rows)
    for (const bool recompute : {false, true})
      BOOST_TEST_CONTEXT(row.placement->name << (recompute ? ", recomputing" : "") << ", " << options.cluster.nodes << " x "
                                             << options.cluster.ranks_per_node) {
        const PlanVariant& variant = row.variant(recompute);
        Measured most;
        for (const Measured& rank : run_update(options, row, recompute)) {
          BOOST_TEST(rank.planned == variant.memory.plan);
          BOOST_TEST(rank.peak == variant.memory.plan);
          for (std::size_t k = 0; k < collective_kinds; ++k)
            most.bytes_sent[k] = std::max(most.bytes_sent[k], rank.bytes_sent[k]);
        }
        BOOST_TEST(most.bytes_sent == variant.traffic.rank.bytes_sent, boost::test_tools::per_element());
      }
}

}  // namespace

BOOST_AUTO_TEST_CASE(runs_hold_and_send_what_the_table_says) {
  // The threads communicator counts bytes like messages; run.by_nodes compares groups that communicate by nodes.
  check_against_runs(small("1", "1"));
  check_against_runs(small("2", "2", {"--comm", "mpi", "--update-freq", "2"}));
  check_against_runs(small("2", "2", {"--comm", "mpi", "--update-freq", "5"}));
  check_against_runs(small("2", "1", {"--update-freq", "4", "--accumulate-unsharded", "--ignore-params", "*ln*"}));
  check_against_runs(small("3", "1", {"--batch-size", "2", "--threads", "2", "--reduce-dtype", "bf16"}));
  check_against_runs(
      small("2", "2", {"--comm", "mpi", "--ignore-params", "*ln*", "--freeze", "*h.0.*", "--limit-all-gathers", "1"}));
  check_against_runs(small("1", "4",
                           {"--shard-group-size", "2", "--accumulate-unsharded", "--update-freq", "2",
                            "--checkpoint-activations", "--checkpoint-every", "2"}));
}

BOOST_AUTO_TEST_CASE(what_leaves_a_node_adds_up) {
  // Groups with all divisions into nodes: 6 ranks on nodes of 1, 2, 3, 6; shard axis 1, 2, 3, 6.
  const std::vector<CollectiveUse> uses = {{Collective::all_gather, GroupAxis::shard, 80, 4, 4, 3},
                                           {Collective::reduce_scatter, GroupAxis::shard, 48, 4, 4, 1},
                                           {Collective::all_reduce, GroupAxis::replicate, 35, 4, 4, 2},
                                           {Collective::all_reduce, GroupAxis::world, 1, 8, 8, 1}};
  for (const int shard : {1, 2, 3, 6})
    for (const int per_node : {1, 2, 3, 6, -2, -3}) {  // less than zero: each rank to each other one
      const Cluster cluster = {6 / std::abs(per_node), std::abs(per_node), per_node < 0 ? Between::ranks : Between::nodes};
      const MeshShape mesh = {shard, 6 / shard};
      std::uint64_t between = 0, out = 0;
      for (int rank = 0; rank < 6; ++rank) {
        const RankTraffic t = traffic_of_rank(uses, mesh, cluster, rank);
        std::uint64_t total = 0;
        for (const std::uint64_t bytes : t.bytes_sent) total += bytes;
        BOOST_TEST(t.total() == total);
        BOOST_TEST(t.ring_between_nodes <= total + 4 * 4);  // rounding of the all-reduces
        if (per_node == 6) BOOST_TEST(t.between_nodes + t.ring_between_nodes == 0u);
        if (per_node == 1) BOOST_TEST(t.within_node == 0u);
        between += t.between_nodes;
        out = std::max(out, t.between_nodes);
      }
      const ClusterTraffic all_of_it = traffic_of_cluster(uses, mesh, cluster);
      BOOST_TEST(all_of_it.out_of_node * static_cast<std::uint64_t>(cluster.nodes) >= between);
      BOOST_TEST(all_of_it.rank.between_nodes == out);
    }
}

BOOST_AUTO_TEST_CASE(groups_that_nodes_cut) {
  // Shard groups {0 1 2} {3 4 5} on nodes {0 1} {2 3} {4 5}; an all-gather of shards of 10 bytes.
  const std::vector<CollectiveUse> uses = {{Collective::all_gather, GroupAxis::shard, 10, 1, 1, 1}};
  const std::array<std::uint64_t, 6> within = {10, 10, 0, 0, 10, 10}, between = {10, 10, 20, 20, 10, 10};
  for (int rank = 0; rank < 6; ++rank) {
    const RankTraffic t = traffic_of_rank(uses, {3, 2}, {3, 2}, rank);
    BOOST_TEST(t.within_node == within[static_cast<std::size_t>(rank)]);
    BOOST_TEST(t.between_nodes == between[static_cast<std::size_t>(rank)]);
    // 0 -> 1 -> 2 -> 0 and 3 -> 4 -> 5 -> 3
    BOOST_TEST(t.ring_between_nodes == (rank == 0 || rank == 4 ? 0u : 20u));
  }
  BOOST_TEST(traffic_of_cluster(uses, {3, 2}, {3, 2}).out_of_node == 40u);
}

BOOST_AUTO_TEST_CASE(which_groups_go_by_nodes_is_predicted) {
  // Compares with the rule of the communicators, which checks every rank of a group, for all meshes on small clusters.
  const std::vector<std::vector<CollectiveUse>> one_of_each = {{{Collective::all_gather, GroupAxis::shard, 1, 1, 1, 1}},
                                                               {{Collective::all_gather, GroupAxis::replicate, 1, 1, 1, 1}},
                                                               {{Collective::all_gather, GroupAxis::world, 1, 1, 1, 1}}};
  std::size_t by_nodes = 0;
  for (int ranks = 1; ranks <= 24; ++ranks)
    for (int per_node = 1; per_node <= ranks; ++per_node)
      for (int shard = 1; shard <= ranks; ++shard) {
        if (ranks % per_node != 0 || ranks % shard != 0) continue;
        for (int me = 0; me < ranks; ++me)
          for (const std::vector<CollectiveUse>& use : one_of_each) {
            std::vector<int> nodes;
            for (int r = 0; r < ranks; ++r)
              if (use[0].axis == GroupAxis::world || (use[0].axis == GroupAxis::shard && r / shard == me / shard) ||
                  (use[0].axis == GroupAxis::replicate && r % shard == me % shard))
                nodes.push_back(r / per_node);
            const auto here = static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), me / per_node));
            const auto of_each = static_cast<std::uint64_t>(ranks_of_each_node(nodes));
            const RankTraffic found = traffic_of_rank(use, {shard, ranks / shard}, {ranks / per_node, per_node}, me);
            by_nodes += of_each > 1 && of_each < nodes.size();
            const std::uint64_t expected = of_each > 1 ? nodes.size() / of_each - 1 : nodes.size() - here;
            if (found.between_nodes != expected || found.total() != nodes.size() - 1)
              BOOST_ERROR(ranks << " ranks, " << per_node << " per node, shard axis " << shard << ", rank " << me << ": "
                                << found.between_nodes << " instead of " << expected);
          }
      }
  BOOST_TEST(by_nodes > 1000u);
}

BOOST_AUTO_TEST_CASE(groups_by_nodes_send_what_is_predicted) {
  for (const auto& [nodes, of_each] : std::vector<std::pair<int, int>>{{2, 2}, {3, 2}, {2, 3}, {3, 4}, {2, 8}}) {
    const Cluster cluster = {nodes, of_each};
    run_ranks(cluster.ranks(), [&, of_ranks = of_each](Communicator& world) {
      const auto group = by_nodes(world, of_ranks);
      const auto stream = make_host_stream();
      const auto sent_by = [](const Communicator& comm) {
        const auto& bytes = comm.traffic().bytes_sent;
        return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
      };
      for (const std::size_t count : {0, 1, 2, 3, 7, 35, 1000}) {
        std::vector<float> whole(count * static_cast<std::size_t>(world.size())), shard(count);
        std::vector<double> sums(count);
        const std::vector<std::pair<CollectiveUse, std::function<void()>>> calls = {
            {{Collective::all_gather, GroupAxis::world, count, 4, 4, 1},
             [&] { group->all_gather(*stream, shard.data(), whole.data(), count, DType::f32); }},
            {{Collective::reduce_scatter, GroupAxis::world, count, 4, 4, 1},
             [&] { group->reduce_scatter(*stream, whole.data(), shard.data(), count, Into::overwrite, DType::f32); }},
            {{Collective::reduce_scatter, GroupAxis::world, count, 4, 2, 1},
             [&] { group->reduce_scatter(*stream, whole.data(), shard.data(), count, Into::overwrite, DType::bf16); }},
            {{Collective::all_reduce, GroupAxis::world, count, 4, 4, 1},
             [&] { group->all_reduce(*stream, shard.data(), count, DType::f32); }},
            {{Collective::all_reduce, GroupAxis::world, count, 4, 2, 1},
             [&] { group->all_reduce(*stream, shard.data(), count, DType::f16); }},
            {{Collective::all_reduce, GroupAxis::world, count, 8, 8, 1},
             [&] { group->all_reduce(*stream, sums.data(), count); }}};
        for (const auto& [use, call] : calls) {
          const std::uint64_t all = sent_by(*group), inter_node = sent_by(group->inter_node()), flat = sent_by(group->flat());
          call();
          const RankTraffic predicted = traffic_of_rank({use}, {cluster.ranks(), 1}, cluster, world.rank());
          expect(sent_by(*group) - all == predicted.total(), "bytes that a rank sends are as predicted");
          // Flat collectives are predicted within and between nodes, but counted only as a sum.
          if (sent_by(group->flat()) == flat)
            expect(sent_by(group->inter_node()) - inter_node == predicted.between_nodes,
                   "bytes between nodes are as predicted");
        }
      }
    });
  }
}

BOOST_AUTO_TEST_CASE(rules_of_thumb) {
  // The tutorial's function, called for 7 billion parameters on 8 GPUs.
  const RuleOfThumb full = *tutorial_estimate(7e9, 8, true, find_placement("FULL_SHARD"));
  BOOST_TEST(full.parameters == 1.75e9);
  BOOST_TEST(full.gradients == 1.75e9);
  BOOST_TEST(full.optimizer_state == 7e9);
  BOOST_TEST(full.gathered == 14e9);
  BOOST_TEST(full.total() == 24.5e9);
  BOOST_TEST(tutorial_estimate(7e9, 8, true, find_placement("SHARD_GRAD_OP"))->total() == 14e9 + 1.75e9 + 7e9);
  BOOST_TEST(tutorial_estimate(7e9, 8, false, find_placement("SHARD_GRAD_OP"))->total() == 28e9 + 3.5e9 + 7e9);
  BOOST_TEST(!tutorial_estimate(7e9, 8, true, find_placement("none")));
  const RuleOfThumb slides = slides_breakdown(7e9, {1, 8}, find_placement("none"));
  BOOST_TEST(slides.parameters == 14e9);
  BOOST_TEST(slides.gradients == 14e9);
  BOOST_TEST(slides.optimizer_state == 84e9);
  BOOST_TEST(slides_breakdown(7e9, {8, 1}, find_placement("full")).total() == 14e9);
  BOOST_TEST(slides_breakdown(7e9, {8, 1}, find_placement("optim")).total() == 28e9 + 84e9 / 8);
}

BOOST_AUTO_TEST_CASE(what_fits) {
  const auto limited = [](std::size_t limit, const char* comm = "auto") {
    PlanTableOptions options = small("2", "2", {"--comm", comm});
    options.memory_limit = limit;
    return make_plan_table(options);
  };
  const PlanTable everything = limited(std::size_t{1} << 40);
  BOOST_REQUIRE(everything.least_communicating().has_value());
  // By nodes, a node sends each gradient once with any strategy, and `none` has the least padding. If each rank sends to each
  // other one, groups within a node send least.
  BOOST_TEST(everything.rows[everything.least_communicating()->row].placement->name == "none");
  BOOST_TEST(!everything.least_communicating()->recompute);
  CHECK_CONTAINS(describe(everything), "the least communicating: --sharding-strategy none\n");
  CHECK_CONTAINS(describe(limited(std::size_t{1} << 40, "mpi")),
                 "the least communicating: --sharding-strategy hybrid-grad-op\n");

  const PlanChoice smallest = everything.smallest();
  const std::size_t least = everything.rows[smallest.row].variant(smallest.recompute).memory.total();
  BOOST_TEST(smallest.recompute);
  const PlanTable just = limited(least), nothing = limited(least - 1);
  BOOST_TEST(just.least_communicating()->recompute);
  CHECK_CONTAINS(describe(just), "--checkpoint-activations");
  BOOST_TEST(!nothing.least_communicating().has_value());
  CHECK_CONTAINS(describe(nothing), "nothing fits");
  CHECK_CONTAINS(describe(nothing), "  more ranks, a smaller --batch-size or");
  PlanTableOptions adapters = small("1", "2", {"--lora-rank", "2"});
  adapters.memory_limit = 1;
  CHECK_CONTAINS(describe(make_plan_table(adapters)), "  more ranks, --base-dtype nf4, a smaller --batch-size or");
  BOOST_TEST(to_json(nothing)["least_communicating"].is_null());
}

BOOST_AUTO_TEST_CASE(lines_have_at_most_120_columns_and_rows_of_tables_100) {
  for (const char* nodes : {"1", "3", "1024"}) {
    const PlanTable table = make_plan_table(
        parse({"--arch", "llama-3.1-405b", "--nodes", nodes, "--ranks-per-node", "8", "--memory-limit", "141GB",
               "--tokens-per-sample", "8192", "--wrap-layers", "3", "--freeze", "*.0.*", "--checkpoint-activations",
               "--checkpoint-every", "4", "--sharding-strategy", "hybrid-grad-op"}));
    std::istringstream lines(describe(table) + explain(table));
    for (std::string line; std::getline(lines, line);)
      BOOST_CHECK_MESSAGE(line.size() <= 120, line.size() << " columns: " << line);
    std::istringstream rows(describe(table));
    for (std::string row; std::getline(rows, row);)
      if (row.starts_with("  ") || row.starts_with("> "))
        BOOST_CHECK_MESSAGE(row.size() <= 100, row.size() << " columns: " << row);
  }
}

BOOST_AUTO_TEST_CASE(json_has_the_numbers) {
  for (const char* device : {"cpu", "cuda"}) {
    const PlanTable table = make_plan_table(small(
        "2", "2", {"--device", device, "--save-interval-updates", "10", "--trace", "trace.json", "--offload-params", "cpu"}));
    const nlohmann::json json = to_json(table);
    BOOST_TEST(json["strategies"].size() == 6u);
    BOOST_TEST(json["parameters"] == all);
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      const nlohmann::json& m = json["strategies"][i]["keeping"]["memory"];
      BOOST_TEST(m["total"] == table.rows[i].keeping.memory.total());
      std::size_t parts = 0;
      for (const auto& [key, value] : m.items())
        if (key != "total" && key != "plan_peak" && key != "offloaded") parts += value.get<std::size_t>();
      BOOST_TEST(m["total"] == parts);
      // Host memory in a job on GPUs does not count, nor does a trace.
      for (const char* of_host : {"snapshot", "read_ahead"}) BOOST_TEST((m[of_host] > 0) == (device == std::string("cpu")));
      for (const char* offload : {"offloaded", "loaded_from_host"})  // a CPU's memory is the host's
        BOOST_TEST((m[offload] > 0) == (device == std::string("cuda")));
      BOOST_TEST(json["strategies"][i]["recomputing"]["traffic"]["out_of_node"] ==
                 table.rows[i].recomputing.traffic.out_of_node);
    }
  }
}

BOOST_AUTO_TEST_CASE(json_explains_the_chosen_strategy) {
  for (const bool recompute : {false, true}) {
    std::vector<const char*> more = {"--explain", "--json", "--vocab-size", "31", "--bf16", "--freeze", "h.1.*"};
    if (recompute) more.push_back("--checkpoint-activations");
    const PlanTable table = make_plan_table(parse([&] {
      more.insert(more.end(), {"--arch", "gpt2", "--decoder-layers", "3", "--decoder-embed-dim", "16",
                               "--decoder-attention-heads", "2", "--tokens-per-sample", "8", "--ranks-per-node", "3"});
      return more;
    }()));
    const nlohmann::json plan = to_json(table)["plan"];
    BOOST_TEST(plan["strategy"] == "full");
    BOOST_TEST(plan["recomputing"] == recompute);
    BOOST_TEST(plan["shard"] == 3);

    // A unit's tensors and the ranks' slices of them are the same elements.
    BOOST_TEST(plan["units"].size() == 4u);
    std::size_t elements = 0, bytes = 0;
    for (const nlohmann::json& unit : plan["units"]) {
      std::map<std::string, std::size_t> left;
      for (const nlohmann::json& tensor : unit["tensors"]) left[tensor["name"]] = tensor["elements"];
      for (const nlohmann::json& slices : unit["shard_slices"])
        for (const nlohmann::json& slice : slices)
          left.at(slice["tensor"]) -= slice["end"].get<std::size_t>() - slice["begin"].get<std::size_t>();
      for (const auto& [name, count] : left) BOOST_TEST(count == 0u, name);
      elements += unit["elements"].get<std::size_t>();
      const std::size_t part = unit["of_a_rank"];
      const bool trained = unit["name"] != "block 1, frozen";
      BOOST_TEST(unit["trained"] == trained);
      BOOST_TEST(unit["padded"] == 3 * part);
      const std::size_t in_16_bits = (2 * part + 63) / 64 * 64;  // buffers are whole cache lines
      BOOST_TEST(unit["parameter_bytes"] == in_16_bits);
      BOOST_TEST(unit["fp32_copy_bytes"] == (trained ? 4 * part : 0));
      BOOST_TEST(unit["gradient_bytes"] == (trained ? 4 * part : 0));
      BOOST_TEST(unit["optimizer_state_bytes"] == (trained ? 8 * part : 0));
      bytes += in_16_bits + (trained ? 4 * part : 0);
    }
    BOOST_TEST(elements == table.model.parameter_count());

    // Operations account for the same peak as the memory plan.
    const MemoryAccount& memory = table.chosen().variant(recompute).memory;
    std::size_t most = 0, held = 0;
    for (const nlohmann::json& op : plan["operations"]) {
      most = std::max(most, op["activations"].get<std::size_t>());
      const std::string kind = op["kind"];
      BOOST_TEST(op.contains("moved_bytes") ==
                 (kind.starts_with("all-gather") || kind.starts_with("reduce-scatter") || kind.starts_with("all-reduce")));
      if (op["kind"] == "all-gather")
        BOOST_TEST(op["moved_bytes"] == 2 * plan["units"][op["unit"].get<std::size_t>()]["of_a_rank"].get<int>());
      if (op["kind"] == "reduce-scatter")
        BOOST_TEST(op["moved_bytes"] == 4 * plan["units"][op["unit"].get<std::size_t>()]["of_a_rank"].get<int>());
    }
    for (const nlohmann::json& buffer : plan["buffers"])
      if (buffer["whole_run"] && !buffer["on_host"]) held += buffer["bytes"].get<std::size_t>();
    BOOST_TEST(most == memory.of(BufferRole::activations));
    BOOST_TEST(held + most == memory.plan);
    BOOST_TEST(bytes == memory.of(BufferRole::parameters));
    const auto count = [&](const char* kind) {
      return std::count_if(plan["operations"].begin(), plan["operations"].end(),
                           [&](const nlohmann::json& op) { return op["kind"] == kind; });
    };
    BOOST_TEST(count("recompute") == (recompute ? 2 : 0));
    BOOST_TEST(count("reduce-scatter") == 3);
  }
  BOOST_TEST(!to_json(make_plan_table(small("1", "2"))).contains("plan"));
}

BOOST_AUTO_TEST_CASE(mistakes) {
  const auto error = [](std::vector<const char*> arguments) {
    return message_of([&] { make_plan_table(parse(std::move(arguments))); });
  };
  CHECK_CONTAINS(error({}), "no model");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--nodes", "2", "--ranks-per-node", "4", "--shard-group-size", "3"}),
                 "groups of 3 ranks do not divide 8 ranks");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--nodes", "1000000", "--ranks-per-node", "1000000"}), "too many");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--ranks-per-node", "3", "--total-batch-size", "4"}), "is not a multiple");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--checkpoint-every", "2"}), "goes with --checkpoint-activations");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "h100", "--device", "cpu"}), "leave out one of them");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "h100", "--comm", "mpi"}), "--comm mpi sends data through the host");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "rtx4090", "--nodes", "2"}), "no figure for a network between nodes");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "H100"}), "did you mean h100?");
}
