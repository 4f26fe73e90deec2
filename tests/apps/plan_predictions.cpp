// fsdp-plan: the options of predictions (--network, --gpu-power, --slow-rank, --scaling), and what is said about predictions.
#include <algorithm>
#include <sstream>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "apps/small_plan.hpp"
#include "fsdp-plan/plan_scaling.hpp"
#include "fsdp-plan/prediction_notes.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

PlanTable table_of(std::vector<const char*> arguments) { return make_plan_table(parse(std::move(arguments))); }

/// llama-3.1-8b in bf16 on H100, with nodes of 8 ranks.
PlanTable llama(std::vector<const char*> more) {
  more.insert(more.end(), {"--arch", "llama-3.1-8b", "--bf16", "--batch-size", "1", "--tokens-per-sample", "4096",
                           "--ranks-per-node", "8", "--gpu", "h100"});
  return table_of(std::move(more));
}

std::string wrong_scaling(std::vector<std::string> items) {
  return message_of([&] { numbers_of_ranks(items, 4096); });
}

void check_width(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    BOOST_CHECK_MESSAGE(line.size() <= (line.starts_with("  ") || line.starts_with("> ") ? 100 : 120),
                        line.size() << " columns: " << line);
}

}  // namespace

BOOST_AUTO_TEST_CASE(lists_of_numbers_of_ranks) {
  const auto of = [](std::vector<std::string> items) { return numbers_of_ranks(items, 4096); };
  BOOST_TEST(of({"1", "2", "4..16"}) == (std::vector<int>{1, 2, 4, 8, 16}), boost::test_tools::per_element());
  BOOST_TEST(of({"3..12", "13", "4096"}) == (std::vector<int>{3, 6, 12, 13, 4096}), boost::test_tools::per_element());
  BOOST_TEST(of({"7..7"}) == (std::vector<int>{7}), boost::test_tools::per_element());
  for (const char* item :
       {"0", "-1", "4097", "x", "", "1.5", "1e3", " 8", "4...8", "..8", "4..", "1..2..4", "0..8", "8..8192", "99999999999"})
    CHECK_CONTAINS(wrong_scaling({"1", item}), format("--scaling {}: not a number of ranks", item));
  CHECK_CONTAINS(wrong_scaling({"8", "4"}), "--scaling 4: it comes after 8");
  CHECK_CONTAINS(wrong_scaling({"8", "8"}), "--scaling 8: it comes after 8");
  CHECK_CONTAINS(wrong_scaling({"1..8", "8..16"}), "--scaling 8..16: it comes after 8");
  CHECK_CONTAINS(wrong_scaling({"8..4"}), "doubling 8 does not reach 4");
  CHECK_CONTAINS(wrong_scaling({"4..100"}), "doubling 4 does not reach 100");
}

// Section 6 of the design: without latencies weak scaling was flat.
BOOST_AUTO_TEST_CASE(weak_scaling_is_not_flat) {
  const PlanTable table = llama({"--scaling", "8,128,512,4096"});
  BOOST_TEST_REQUIRE(table.scaling.size() == 4u);
  double before = 1.01;
  for (const PredictedPoint& point : table.scaling) {
    BOOST_TEST(*efficiency(table, point) < before - 0.005);
    before = *efficiency(table, point);
    BOOST_TEST(point.cluster.ranks_per_node == 8);
    BOOST_TEST(point.micro_batches == 1u);
  }
  BOOST_TEST(*efficiency(table, table.scaling[1]) > 0.85);
  BOOST_TEST(before < 0.5);
  // A point is what the plan of that cluster says.
  const PlanTable there = llama({"--nodes", "16"});
  BOOST_TEST(table.scaling[1].variant.step.total == there.chosen().keeping.step.total);
  BOOST_TEST(table.scaling[1].variant.memory.total() == there.chosen().keeping.memory.total());
}

BOOST_AUTO_TEST_CASE(a_smaller_network_is_slower) {
  const PlanTable usual = llama({"--nodes", "4"}), small_one = llama({"--nodes", "4", "--network", "1x50"});
  BOOST_TEST(small_one.rates->network.node_bandwidth() == 50e9 / 8);
  CHECK_CONTAINS(describe(small_one), "1 x 50 Gbit/s");
  CHECK_CONTAINS(describe(small_one), "1x50: as given");
  for (const PlanRow& row : usual.rows) {
    const StepPrediction &there = row.keeping.step, &here = row_of(small_one, row.placement->name).keeping.step;
    BOOST_TEST(here.communication > there.communication, row.placement->name);
    BOOST_TEST(here.total > there.total, row.placement->name);
    BOOST_TEST(here.products == there.products, row.placement->name);
  }
  // A gather of all of a node's 8 ranks takes the shards of the others through one port, 16 GB of parameters at 5.8 GB/s.
  BOOST_TEST(row_of(small_one, "full").keeping.step.total > 5);
  BOOST_TEST(llama({"--nodes", "2", "--network", "dgx-a100"}).rates->network.node_bandwidth() == 8 * 25e9);
}

BOOST_AUTO_TEST_CASE(options_combine_with_all_strategies) {
  for (const Placement& placement : placements()) BOOST_TEST_CONTEXT(placement.name) {
      const std::vector<const char*> all = {"--sharding-strategy", placement.name.data(), "--nodes", "2", "--network", "4x100"};
      const auto with = [&](std::vector<const char*> more) {
        more.insert(more.end(), all.begin(), all.end());
        return llama(std::move(more));
      };
      const PlanTable usual = with({}), limited = with({"--gpu-power", "350"}),
                      slow = with({"--gpu-power", "350", "--slow-rank", "5:1.5", "--scaling", "8..64"});
      for (const bool recompute : {false, true}) {
        const PlanVariant &fast = usual.chosen().variant(recompute), &at_350 = limited.chosen().variant(recompute),
                          &slowed = slow.chosen().variant(recompute);
        BOOST_TEST(at_350.step.products / fast.step.products == std::sqrt(2), boost::test_tools::tolerance(1e-9));
        BOOST_TEST(at_350.step.memory_bound == fast.step.memory_bound, boost::test_tools::tolerance(1e-9));
        BOOST_TEST(at_350.seconds_without_slow_rank == 0);
        BOOST_TEST(slowed.seconds_without_slow_rank == at_350.step.total);
        // All ranks wait for the slow one, which computes for 1.5 times as long.
        BOOST_TEST(slowed.step.total > 1.1 * at_350.step.total);
        BOOST_TEST(slowed.step.total < 1.5 * at_350.step.total);
        BOOST_TEST(slowed.step.products > at_350.step.products);
      }
      BOOST_TEST(slow.scaling.size() == 4u);
      check_width(describe(slow));
    }
}

// The first micro-batch differs from the second: gradients are only added up from then on. Times of many micro-batches follow
// from those of two and three.
BOOST_AUTO_TEST_CASE(no_part_of_many_micro_batches_is_negative) {
  const PlanTable table =
      table_of({"--arch", "llama-3.2-1b", "--bf16", "--master-dtype", "bf16", "--grad-dtype", "bf16", "--tokens-per-sample",
                "512", "--update-freq", "8", "--ranks-per-node", "2", "--gpu", "h100"});
  for (const PlanRow& row : table.rows) {
    BOOST_TEST(row.keeping.step.slowed > -1e-9, row.placement->name);
    BOOST_TEST(row.keeping.step.exposed > -1e-9, row.placement->name);
  }
  BOOST_TEST(row_of(table, "optim").keeping.step.exposed < 0.3 * row_of(table, "optim").keeping.step.total);
}

BOOST_AUTO_TEST_CASE(recomputation_as_asked_or_where_it_is_needed) {
  const PlanTable best = llama({"--scaling", "1,2,8"});
  BOOST_TEST(!best.fits(best.scaling[0].variant));
  BOOST_TEST(best.scaling[0].recomputes);
  BOOST_TEST(!efficiency(best, best.scaling[0]).has_value());
  BOOST_TEST(*efficiency(best, best.scaling[1]) == 1);
  BOOST_TEST(!best.scaling[2].recomputes);
  const PlanTable asked = llama({"--scaling", "8", "--checkpoint-activations"});
  BOOST_TEST(asked.scaling[0].recomputes);
  CHECK_CONTAINS(describe(asked), "recomputed, as the\noptions say.");
  const PlanTable blocks = llama({"--scaling", "8", "--recompute-num-layers", "5"});
  BOOST_TEST(to_json(blocks)["scaling"][0]["recomputed_blocks"] == 5);
  BOOST_TEST(to_json(asked)["scaling"][0]["recomputed_blocks"] == 32);
  BOOST_TEST(to_json(best)["scaling"][2]["recomputed_blocks"] == 0);
}

BOOST_AUTO_TEST_CASE(a_total_batch_is_kept_by_all_ranks) {
  const PlanTable table = llama({"--scaling", "8..64", "--total-batch-size", "64"});
  for (const PredictedPoint& point : table.scaling)
    BOOST_TEST(point.micro_batches * static_cast<std::size_t>(point.cluster.ranks()) == 64u);
  CHECK_CONTAINS(describe(table), "strong scaling by --sharding-strategy full: all ranks together keep 262144 tokens");
  const nlohmann::json json = to_json(table)["scaling"];
  BOOST_TEST(json[0]["micro_batches"] == 8);
  BOOST_TEST(json[0]["tokens"] == json[3]["tokens"]);
}

BOOST_AUTO_TEST_CASE(what_predictions_say_about_themselves) {
  const PlanTable table = llama({"--nodes", "2"});
  const std::string text = describe(table);
  CHECK_CONTAINS(text, "validated on up to 512 GPUs with other programs, and on one GPU with this program");
  BOOST_TEST((!contains(text, "Above 512 ranks") && !contains(text, "No update on this GPU")));
  BOOST_TEST(!contains(text, "PyTorch"));
  for (const PlanTable& large : {llama({"--nodes", "65"}), llama({"--scaling", "8,1024"})}) {
    CHECK_CONTAINS(describe(large), "Above 512 ranks only two updates of DeepSpeed");
    CHECK_CONTAINS(describe(large), "(PAT)");
  }
  // Activations are kept: 77.7 of 79.2 GiB.
  PlanTableOptions nearly = parse({"--arch", "llama-3.1-8b", "--bf16", "--ranks-per-node", "8", "--gpu", "h100"});
  PlanTable full = make_plan_table(nearly);
  for (PlanRow& row : full.rows)
    row.keeping.memory.context += 78.9 * (1 << 30) - static_cast<double>(row.keeping.memory.total());
  CHECK_CONTAINS(describe(full),
                 "full on 8 ranks: the plan needs 99.6 % of the GPU's memory: a PyTorch program would be slower (");
  BOOST_TEST(prediction_notes(table_of({"--arch", "gpt2"})).empty());
  CHECK_CONTAINS(prediction_notes(table_of({"--arch", "gpt2", "--gpu", "l40s"}))[0], "No update on this GPU was compared.");
}

BOOST_AUTO_TEST_CASE(json_has_rates_notes_and_scaling) {
  const PlanTable table = llama({"--nodes", "2", "--slow-rank", "15:1.25", "--scaling", "16,1024", "--network", "alps"});
  const nlohmann::json json = to_json(table);
  for (const char* rate : {"products", "product_half", "fp32_products", "attention", "memory", "optimizer", "host_link",
                           "update", "spread", "ring", "call", "hop", "network_share", "network", "interference"})
    BOOST_TEST(json["rates"][rate]["source"].get<std::string>().size() > 3, rate);
  BOOST_TEST(json["rates"]["network"]["name"] == "alps");
  BOOST_TEST(json["slow_rank"]["rank"] == 15);
  BOOST_TEST(json["slow_rank"]["factor"] == 1.25);
  BOOST_TEST(json["notes"].size() == 4u);  // validated, above 512, and the slow rank with and without recomputation
  const nlohmann::json& keeping = json["strategies"][0]["keeping"]["prediction"];
  BOOST_TEST(keeping["ms"].get<double>() > keeping["ms_without_slow_rank"].get<double>());
  BOOST_TEST_REQUIRE(json["scaling"].size() == 2u);
  for (const char* field : {"nodes", "ranks", "micro_batches", "tokens", "tokens_per_second_and_rank", "efficiency",
                            "recomputing", "recomputed_blocks", "memory_bytes", "fits", "prediction"})
    BOOST_TEST(json["scaling"][1].contains(field), field);
  BOOST_TEST(json["scaling"][0]["efficiency"] == 1);
  BOOST_TEST(json["scaling"][0]["prediction"]["ms"] == keeping["ms"]);
  const nlohmann::json without = to_json(table_of({"--arch", "gpt2"}));
  for (const char* field : {"notes", "slow_rank", "scaling"}) BOOST_TEST(!without.contains(field), field);
}

BOOST_AUTO_TEST_CASE(pages_and_tables_of_scaling) {
  const PlanTable table = llama({"--scaling", "1,2,4..64"});
  const std::string csv = scaling_csv(table), page = scaling_page(table), text = describe(table);
  BOOST_TEST(std::count(csv.begin(), csv.end(), '\n') == 8);
  BOOST_TEST(csv.starts_with("nodes,ranks,micro_batches,tokens,ms,"));
  CHECK_CONTAINS(csv, "\n8,64,1,262144,");
  for (const char* part :
       {"Predicted scaling of llama-3.1-8b", "Not measured", "Tokens per second", "Efficiency", "Parts of an update",
        "Memory of a rank", "validated on up to 512", "nccl-tests", "data-log-x=\"1\""})
    CHECK_CONTAINS(page, part);
  BOOST_TEST((!contains(page, "<link") && !contains(page, "src=")));
  check_width(text);
  CHECK_CONTAINS(text, "weak scaling by --sharding-strategy full: each rank keeps 1 micro-batch x 4096 tokens of an update");
  // No point fits: there is nothing to compare, and nothing to draw but the memory.
  const PlanTable none = llama({"--scaling", "1", "--memory-limit", "1GiB"});
  CHECK_CONTAINS(scaling_csv(none), ",,");
  BOOST_TEST(!contains(scaling_page(none), "Parts of an update"));
  BOOST_TEST(scaling_csv(table_of({"--arch", "gpt2"})).find("\n1,") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(mistakes_in_options_of_predictions) {
  const auto error = [](std::vector<const char*> more) { return message_of([&] { llama(std::move(more)); }); };
  for (const char* option : {"--network", "--gpu-power", "--slow-rank", "--scaling"}) {
    const char* const value = option == std::string("--network")     ? "alps"
                              : option == std::string("--slow-rank") ? "0:2"
                                                                     : "300";
    CHECK_CONTAINS(message_of([&] {
                     table_of({"--arch", "gpt2", option, value});
                   }),
                   format("{} changes nothing without --gpu", option));
  }
  CHECK_CONTAINS(error({"--out", "here"}), "--out changes nothing without --scaling");
  CHECK_CONTAINS(error({"--nodes", "2", "--network", "infiniband"}), "known are dgx-a100, dgx-h100");
  CHECK_CONTAINS(error({"--nodes", "2", "--network", "0x400"}), "which no node has");
  for (const char* power : {"701", "174"}) CHECK_CONTAINS(error({"--gpu-power", power}), "(175 to 700 W)");
  for (const char* power : {"nan", "-1", "0", "x"}) CHECK_CONTAINS(error({"--gpu-power", power}), "--gpu-power");
  for (const char* slow : {"7", "7:", ":2", "7:2x", "seven:2", "7 :2", "99999999999:2", "7:1e999"})
    CHECK_CONTAINS(error({"--slow-rank", slow}), "is no rank with a factor");
  for (const char* slow : {"8:2", "-1:2"}) CHECK_CONTAINS(error({"--slow-rank", slow}), "it has 8 ranks, from rank 0");
  for (const char* slow : {"7:0.99", "7:100.1", "7:nan", "7:inf", "7:-2"})
    CHECK_CONTAINS(error({"--slow-rank", slow}), "1 to 100");
  CHECK_CONTAINS(error({"--scaling", "8,12"}), "--scaling 12: 12 ranks are not whole nodes");
  CHECK_CONTAINS(error({"--scaling", "8,16,32", "--nodes", "2", "--sharding-strategy", "hybrid", "--shard-group-size", "16"}),
                 "--scaling 8: shard groups of 16 ranks do not divide 8 ranks");
  CHECK_CONTAINS(error({"--scaling", "4,8", "--slow-rank", "6:2"}), "--scaling 4: the job has no rank 6");
  CHECK_CONTAINS(error({"--scaling", "8,64", "--total-batch-size", "32"}),
                 "--scaling 64: --total-batch-size 32 is not a multiple");
  CHECK_CONTAINS(message_of([] {
                   table_of({"--arch", "gpt2", "--gpu", "l40s", "--ranks-per-node", "8", "--scaling", "8,16"});
                 }),
                 "--scaling 16: NVIDIA L40S has no figure for a network");
}
