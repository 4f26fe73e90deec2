// fsdp-plan: numbers computed by hand, and the same numbers from runs on the threads communicator.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "apps/small_plan.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/threads.hpp"
#include "options/model_options.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/places.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

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
  BOOST_TEST(table.model->parameter_count() == all);
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
  const std::size_t saved = (table.model->sizes({1, 8}).saved.front() + 63) / 64 * 64;
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
  // nodes, each time with 29 words to be summed and 29 sums. For the loss, six numbers, a rank sends at most six numbers
  // within and between nodes.
  BOOST_TEST(sent(full, Collective::all_reduce) == 2 * (8 * 58 + 8 * 6));
  BOOST_TEST(full.traffic.rank.within_node == (gathers + scatters) / 3 * 2 + 8 * 58 + 8 * 6);
  BOOST_TEST(full.traffic.rank.between_nodes == (gathers + scatters) / 3 + 8 * 58 + 8 * 6);
  BOOST_TEST(full.traffic.out_of_node == 2 * full.traffic.rank.between_nodes);
  BOOST_TEST(full.traffic.ring_out_of_node == gathers + scatters + 8 * 88 + 8 * 10);  // only from rank 1

  const PlanVariant& hybrid = row_of(table, "hybrid").keeping;
  const std::uint64_t in_group = 2 * (672 + 5 * 3296) + 2 * all2, replicas = 4 * all2 / 2;
  BOOST_TEST(sent(hybrid, Collective::all_gather) + sent(hybrid, Collective::reduce_scatter) == in_group);
  BOOST_TEST(sent(hybrid, Collective::all_reduce) == replicas + 8 * 58 + 8 * 12);
  BOOST_TEST(hybrid.traffic.rank.within_node == in_group + 8 * 58 + 8 * 6);
  BOOST_TEST(hybrid.traffic.rank.between_nodes == replicas + 8 * 6);
  BOOST_TEST(hybrid.traffic.out_of_node == 2 * replicas + 8 * 12);

  // From rank to rank: one of a rank's three peers is on its node. For the norm rank 0 sends 15 words to be summed and 15 sums
  // to each; for the loss up to 2 and 2. Ranks that sum less send less.
  const PlanTable by_messages = make_plan_table(small("2", "2", {"--comm", "mpi"}));
  const PlanVariant& flat = row_of(by_messages, "full").keeping;
  BOOST_TEST(sent(flat, Collective::all_gather) == gathers);
  BOOST_TEST(sent(flat, Collective::all_reduce) == 8 * (58 - 15 + 3 * 15) + 8 * 10);
  BOOST_TEST(flat.traffic.rank.within_node == (gathers + scatters) / 3 + 8 * 30 + 8 * 4);
  BOOST_TEST(flat.traffic.rank.between_nodes == (gathers + scatters) / 3 * 2 + 8 * 58 + 8 * 6);
  BOOST_TEST(flat.traffic.out_of_node == 2 * ((gathers + scatters) / 3 * 2 + 8 * 58) + 8 * 12);
  BOOST_TEST(flat.traffic.ring_out_of_node == full.traffic.ring_out_of_node);
  const PlanVariant& flat_hybrid = row_of(by_messages, "hybrid").keeping;
  BOOST_TEST(sent(flat_hybrid, Collective::all_reduce) == replicas + 8 * 58 + 8 * 10);
  BOOST_TEST(flat_hybrid.traffic.rank.between_nodes == replicas + 8 * 6);
}

BOOST_AUTO_TEST_CASE(three_nodes_of_one_by_hand) {
  const PlanTable table = make_plan_table(small("3", "1"));
  constexpr std::size_t all3 = 672 + 3 * 3312;
  check_states(table, "full", 4 * all3 / 3, 4 * all3 / 3, 8 * all3 / 3, 4 * (672 + 2 * 3312), 4 * (672 + 2 * 3312));
  check_states(table, "hybrid", 4 * all, 4 * all, 8 * all, 0, 0);  // groups of one
  const PlanVariant& none = row_of(table, "none").keeping;
  // Shares of 224 in the root; 1094, 1093, 1093 in a block; the loss.
  BOOST_TEST(sent(none, Collective::all_reduce) == 4 * (4 * 224 + 3 * (3280 + 1094)) + 8 * 8);
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
  for (const Communicator* comm : {&world, static_cast<const Communicator*>(&sharded.mesh().shard()),
                                   static_cast<const Communicator*>(&sharded.mesh().replicate())})
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

BOOST_AUTO_TEST_CASE(a_prediction_is_printed_as_one) {
  const PlanTable table = make_plan_table(small("1", "2", {"--gpu", "h100"}));
  BOOST_TEST((table.model->device() == cuda_traits()));
  BOOST_TEST(table.options.memory_limit == static_cast<std::size_t>(79.2 * (1 << 30)));
  CHECK_CONTAINS(describe(table), "not measured");
  const nlohmann::json json = to_json(table);
  for (const NamedRate& rate : named_rates(*table.rates)) CHECK_CONTAINS(describe(table), rate.value);
  for (const auto& [name, rate] : json["rates"].items())
    if (rate.is_object() && rate.contains("value"))
      BOOST_TEST((rate["value"] == 0) == rate["source"].get<std::string>().empty(), name);
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
    BOOST_TEST((gpu.network.empty() || find_network(gpu.network)), gpu.name);
    BOOST_TEST(gpu.ring_bandwidth <= gpu.link_bandwidth, gpu.name);
    BOOST_TEST((gpu.product_share > 0.5 && gpu.product_share <= 1), gpu.name);
    BOOST_TEST((!gpu.share_by.empty() && !gpu.ring_by.empty() && !gpu.source.empty()), gpu.name);
  }
  // Names with the same beginning may be different GPUs.
  BOOST_TEST(figures_of("NVIDIA H200 NVL (compute capability 9.0, 141 GiB)")->name == "h200-nvl");
  BOOST_TEST(figures_of("NVIDIA H200 (compute capability 9.0, 141 GiB)")->name == "h200");
  BOOST_TEST(figures_of("NVIDIA H200 MIG 1g.18gb (compute capability 9.0, 18 GiB)") == nullptr);
}

// The written plan has at most two micro-batches, and so have its times.
BOOST_AUTO_TEST_CASE(a_written_plan_has_the_times_of_its_operations) {
  const auto last_end = [](const char* updates) {
    const PlanTable table =
        make_plan_table(small("1", "2", {"--gpu", "h100", "--bf16", "--explain", "--update-freq", updates}));
    const nlohmann::json json = to_json(table);
    double end = 0;
    for (const auto& op : json["plan"]["operations"]) end = std::max(end, op["end_ms"].get<double>());
    return end;
  };
  BOOST_TEST(last_end("2") > 0);
  BOOST_TEST(last_end("3") == last_end("2"));
  BOOST_TEST(last_end("4") == last_end("2"));
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

// With --recompute-num-layers auto each strategy recomputes the fewest blocks that fit --memory-limit.
BOOST_AUTO_TEST_CASE(blocks_that_fit) {
  const auto with = [](const char* option, const std::string& value, std::size_t limit) {
    const std::string bytes = std::to_string(limit);
    return make_plan_table(parse({"--arch", "gpt2", "--ranks-per-node", "2", "--batch-size", "4", "--device", "cuda", "--bf16",
                                  option, value.c_str(), "--memory-limit", bytes.c_str()}));
  };
  constexpr std::size_t enough = std::size_t{1} << 40;
  const PlanTable kept = with("--recompute-num-layers", "0", enough), four = with("--recompute-num-layers", "4", enough);
  for (std::size_t i = 0; i < kept.rows.size(); ++i) {
    BOOST_TEST(four.rows[i].keeping.memory.total() == kept.rows[i].keeping.memory.total());
    BOOST_TEST(four.rows[i].recomputing.memory.total() < four.rows[i].keeping.memory.total());
    BOOST_TEST(four.rows[i].recomputing.recomputed_blocks == 4u);
  }
  // A limit that the smallest pieces of logits alone do not reach, so that a block is recomputed.
  const PlanTable smallest = with("--recompute-num-layers", "0", 1 << 20);
  BOOST_TEST(!smallest.fits(row_of(smallest, "full").keeping));
  const std::size_t limit = row_of(smallest, "full").keeping.memory.total() - 1;
  const PlanTable chosen = with("--recompute-num-layers", "auto", limit);
  const PlanRow& full = row_of(chosen, "full");
  BOOST_TEST(chosen.fits(full.recomputing));
  BOOST_TEST(!chosen.fits(full.keeping));
  BOOST_TEST(full.recomputing.recomputed_blocks == 1u);
  BOOST_TEST((full.recomputing.model != chosen.model));
  const PlanChoice least = *chosen.least_communicating();
  CHECK_CONTAINS(describe(chosen),
                 format("{} --recompute-num-layers {} --memory-limit {}\n", chosen.rows[least.row].placement->name,
                        chosen.rows[least.row].recomputing.recomputed_blocks, limit));
  BOOST_TEST(plan_of_chosen(chosen, true).plan.peak_bytes == full.recomputing.memory.plan);
  BOOST_TEST(row_of(with("--recompute-num-layers", "auto", enough), "full").recomputing.recomputed_blocks == 0u);
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
      for (const char* offload : {"offloaded", "offload_slots"})  // a CPU's memory is the host's
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
    BOOST_TEST(elements == table.model->parameter_count());

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
  CHECK_CONTAINS(error({"--arch", "gpt2", "--recompute-num-layers", "13"}), "the model has 12");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--recompute-num-layers", "auto"}), "give --memory-limit or --gpu");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "h100", "--device", "cpu"}), "leave out one of them");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "h100", "--comm", "mpi"}), "--comm mpi sends data through the host");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "rtx4090", "--nodes", "2"}), "no figure for a network between nodes");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "H100"}), "did you mean h100?");
  CHECK_CONTAINS(error({"--arch", "gpt2", "--gpu", "h100", "--nvme-bandwidth", "6,4"}), "changes nothing without");
}

// Without the rates of the disk there is no prediction. The traffic is that of a plan with all micro-batches.
BOOST_AUTO_TEST_CASE(state_in_a_file_is_planned) {
  for (const char* updates : {"1", "3", "4", "7"})
    for (const bool known : {false, true}) {
      PlanTableOptions options = small("1", "2", {"--gpu", "h100", "--update-freq", updates});
      if (known) options.nvme_bandwidth.read = 6.5, options.nvme_bandwidth.write = 4;
      options.train.sharding.plan.places = {&planned_on_disk, &planned_on_disk, &spaces::host};
      const PlanTable table = make_plan_table(options);
      const std::string text = describe(table);
      BOOST_TEST(contains(text, "no prediction: the time of the disk is unknown; give --nvme-bandwidth") == !known, text);
      BOOST_TEST(contains(text, "6.5 and 4 GB/s") == known, text);
      BOOST_TEST(contains(text, "to the disk of a node;\n  a drive rated for 600 TB written lasts"), text);
      for (const char* part : {"on the", "of the disk on each node"}) CHECK_CONTAINS(text, part);
      const PlanVariant& variant = table.chosen().keeping;
      ShardingOptions sharding = options.train.sharding;
      const DiskTraffic whole = disk_traffic(plan_sharding(*table.model, sharding, {2, 1}).plan);
      BOOST_TEST((variant.disk == whole), variant.disk.read << " and " << whole.read);
      BOOST_TEST(whole.any());
      const nlohmann::json json = to_json(table)["strategies"][0]["keeping"];
      BOOST_TEST(json.contains("prediction") == known);
      BOOST_TEST(json["memory"]["on_disk"] == table.rows[0].keeping.memory.on_disk);
      BOOST_TEST(json["disk_bytes"]["written"] == table.rows[0].keeping.disk.written);
      BOOST_TEST((!known || json["prediction"]["disk_ms"] > 0));
    }
  BOOST_TEST(!contains(describe(make_plan_table(small("1", "2", {"--gpu", "h100"}))), "disk"));
}
