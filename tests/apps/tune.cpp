// fsdp-plan --tune against all combinations one by one, and the times and gains that it prints.
#include <algorithm>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "apps/small_plan.hpp"
#include "fsdp-plan/tune.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Two nodes of two GPUs, and as many sequences per update as `batch` says.
PlanTableOptions options_of(const std::vector<std::string>& more,
                            std::vector<std::string> batch = {"--total-batch-size", "8"}) {
  std::vector<const char*> words = {"--arch",  "gpt2", "--decoder-layers", "3", "--bf16", "--gpu", "h100",
                                    "--nodes", "2",    "--ranks-per-node", "2"};
  batch.insert(batch.end(), more.begin(), more.end());
  for (const std::string& word : batch) words.push_back(word.c_str());
  return parse(words);
}

std::vector<std::string> split(const TunedOptions& tuned) {
  std::vector<std::string> words;
  for (const auto& [name, value] : words_of(tuned)) {
    words.push_back(name);
    if (!value.empty()) words.push_back(value);
  }
  return words;
}

struct Tried {
  double seconds = 0;
  std::size_t memory = 0, on_host = 0;
};
/// The prediction of the options themselves.
Tried try_options(const std::vector<std::string>& words, std::vector<std::string> batch = {"--total-batch-size", "8"}) {
  const PlanTable table = make_plan_table(options_of(words, std::move(batch)));
  const PlanVariant& variant = table.chosen().variant(recomputes(table.options));
  return {variant.step.total, variant.memory.total(), variant.memory.on_host()};
}

/// All combinations, each as a command line.
std::vector<Tried> try_all() {
  using List = std::vector<std::vector<std::string>>;
  const List strategies = {{"full"},
                           {"grad-op"},
                           {"optim"},
                           {"none"},
                           {"hybrid", "--shard-group-size", "2"},
                           {"hybrid-grad-op", "--shard-group-size", "2"}},
             batches = {{"1", "--update-freq", "2"}, {"2", "--update-freq", "1"}}, attentions = {{"own"}, {"cudnn"}},
             places = {{"none"}, {"cpu"}, {"cpu", "--offload-params", "cpu"}};
  List recomputed = {{}, {"--checkpoint-activations"}};
  for (const char* blocks : {"1", "2"}) recomputed.push_back({"--recompute-num-layers", blocks});
  recomputed.push_back({"--recompute-num-layers", "2", "--offload-activations", "--cpu-offloading-num-layers", "1"});
  recomputed.push_back({"--checkpoint-activations", "--offload-activations"});
  std::vector<Tried> all;
  for (const auto& strategy : strategies)
    for (const auto& batch : batches)
      for (const auto& attention : attentions)
        for (const auto& place : places)
          for (const auto& blocks : recomputed) {
            std::vector<std::string> words = blocks;
            const auto add = [&](const char* name, const std::vector<std::string>& values) {
              words.emplace_back(name);
              words.insert(words.end(), values.begin(), values.end());
            };
            add("--sharding-strategy", strategy), add("--batch-size", batch), add("--attention-backend", attention);
            add("--offload-optimizer", place);
            all.push_back(try_options(words));
          }
  return all;
}

Tuning tune_to(std::size_t memory_limit, std::size_t host_memory = 0) {
  PlanTableOptions options = options_of({"--tune"});
  options.memory_limit = memory_limit, options.host_memory = host_memory;
  return tune(make_plan_table(options));
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_best_of_all_combinations) {
  const std::vector<Tried> all = try_all();
  std::vector<std::size_t> memory;
  for (const Tried& tried : all) memory.push_back(tried.memory);
  std::ranges::sort(memory);
  std::size_t with_recomputation = 0, with_offloading = 0;
  for (const std::size_t percent : {0, 3, 8, 25, 60}) {
    const std::size_t limit = memory[(memory.size() - 1) * percent / 100];
    const Tuning tuning = tune_to(limit);
    BOOST_REQUIRE(!tuning.best.empty());
    double best = 1e9;
    for (const Tried& tried : all)
      if (tried.memory <= limit) best = std::min(best, tried.seconds);
    BOOST_TEST_CONTEXT(percent << " %") { BOOST_TEST(tuning.best[0].step.total == best, boost::test_tools::tolerance(2e-6)); }
    BOOST_TEST(tuning.planned <= tuning.combinations);
    BOOST_TEST(tuning.predicted <= tuning.planned);
    BOOST_TEST(!tuning.nearest);
    for (std::size_t i = 0; i < tuning.best.size(); ++i) {
      const TunedOptions& tuned = tuning.best[i];
      BOOST_TEST(tuned.memory <= limit);
      BOOST_TEST(
          (tuned.recompute != Recompute::fewest || tuned.recomputed_blocks > 0));  // else it is there without recomputation
      BOOST_TEST((i == 0 || tuned.tokens_per_second <= (1 + 2e-6) * tuning.best[i - 1].tokens_per_second));
      const Tried again = try_options(split(tuned));  // the options that are printed mean this prediction
      BOOST_TEST(again.seconds == tuned.step.total);
      BOOST_TEST(again.memory == tuned.memory);
      BOOST_TEST(again.on_host == tuned.on_host);
    }
    with_recomputation += tuning.best[0].recompute != Recompute::none, with_offloading += tuning.best[0].places.any();
  }
  const Tuning tuning = tune_to(memory[memory.size() / 4]), again = tune_to(memory[memory.size() / 4]);
  BOOST_REQUIRE(again.best.size() == tuning.best.size());
  for (std::size_t i = 0; i < tuning.best.size(); ++i) BOOST_TEST(split(again.best[i]) == split(tuning.best[i]));
  BOOST_TEST(with_recomputation > 0u);
  BOOST_TEST(with_offloading > 0u);
}

BOOST_AUTO_TEST_CASE(what_is_held_constant) {
  for (const auto& batch : std::vector<std::vector<std::string>>{{"--total-batch-size", "24"}, {"--update-freq", "6"}}) {
    const Tuning tuning = tune(make_plan_table(options_of({"--tune"}, batch)));
    for (const TunedOptions& tuned : tuning.best) BOOST_TEST(tuned.batch_size * tuned.micro_batches == 6u);
  }
  const PlanTable table = make_plan_table(options_of({"--tune", "--memory-limit", "8GiB", "--checkpoint-activations"}, {}));
  const Tuning tuning = tune(table);
  BOOST_TEST(tuning.best[0].batch_size > 1u);
  BOOST_TEST((tuning.own.recompute == Recompute::all));
  for (const TunedOptions& tuned : tuning.best) {
    BOOST_TEST(tuned.micro_batches == 1u);
    BOOST_TEST((tuned.batch_size & (tuned.batch_size - 1)) == 0u);
    std::vector<std::string> words = split(tuned);  // with a memory limit of the run, pieces of logits may be smaller
    words.insert(words.end(), {"--memory-limit", "8GiB"});
    const Tried again = try_options(words, {});
    BOOST_TEST(again.seconds == tuned.step.total);
    BOOST_TEST(again.memory == tuned.memory);
  }
  const std::string text = describe_use(table);
  CHECK_CONTAINS(text, "give --total-batch-size to hold the tokens of an update");
  CHECK_CONTAINS(text, "--batch-size " + std::to_string(tuning.best[0].batch_size) + " instead of 1");
  CHECK_CONTAINS(
      text,
      "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --gpus-per-node=2\nOPTIONS=(--device cuda --precision bf16 ");
}

BOOST_AUTO_TEST_CASE(options_to_leave_out) {
  const auto left_out = [](const std::vector<std::string>& own) {
    std::vector<std::string> words = {"--tune"};
    words.insert(words.end(), own.begin(), own.end());
    const PlanTable table = make_plan_table(options_of(words));
    const Tuning tuning = tune(table);
    BOOST_TEST((tuning.best[0].recompute == Recompute::none));
    std::string names;
    for (const std::string& name : tuning.left_out) names += name + " ";
    CHECK_CONTAINS(describe_use(table), "leave out these of yours: " + tuning.left_out.front());
    return names;
  };
  BOOST_TEST(left_out({"--batch-size", "1", "--checkpoint-activations", "--checkpoint-every", "2"}) ==
             "--checkpoint-activations --checkpoint-every ");
  BOOST_TEST(left_out({"--checkpoint-activations", "--checkpoint-policy", "selective", "--cpu-offload"}) ==
             "--checkpoint-activations --checkpoint-policy --cpu-offload ");
  BOOST_TEST(left_out({"--nvme-path", ".", "--offload-optimizer", "nvme", "--nvme-bandwidth", "5,3"}) ==
             "--offload-optimizer --nvme-path --nvme-bandwidth ");
  BOOST_TEST(tune(make_plan_table(options_of({"--tune", "--batch-size", "1"}))).left_out.empty());
  // Only combinations that recompute all blocks have the user's policy.
  std::size_t with_policy = 0, without = 0;
  for (const std::vector<std::string>& policy :
       {std::vector<std::string>{"--checkpoint-policy", "selective"}, {"--checkpoint-every", "2"}}) {
    PlanTableOptions options = options_of({"--tune", "--checkpoint-activations", policy[0], policy[1]});
    for (const double gib : {2.2, 2.4, 2.6, 2.8}) {
      options.memory_limit = static_cast<std::size_t>(gib * (1 << 30));
      for (const TunedOptions& tuned : tune(make_plan_table(options)).best) {
        const std::vector<std::string> words = split(tuned);
        BOOST_TEST(try_options(words).memory == tuned.memory);
        (std::ranges::count(words, policy[0]) > 0 ? with_policy : without) += 1;
      }
    }
  }
  BOOST_TEST(with_policy > 0u);
  BOOST_TEST(without > 0u);
}

BOOST_AUTO_TEST_CASE(nothing_fits) {
  const Tuning tuning = tune_to(std::size_t{1} << 30);  // less than the driver and libraries need
  BOOST_TEST(tuning.best.empty());
  BOOST_REQUIRE(tuning.nearest);
  BOOST_TEST(tuning.nearest->batch_size == 1u);
  PlanTableOptions options = options_of({"--tune", "--tokens", "1e9"});
  options.memory_limit = std::size_t{1} << 30;
  const PlanTable table = make_plan_table(options);
  CHECK_CONTAINS(describe_use(table), "nothing fits 1.00 GiB: the combination that exceeds it least");
  const nlohmann::json json = use_json(table);
  BOOST_TEST(json["tuning"]["best"].empty());
  BOOST_TEST(json["tuning"]["nearest"]["memory"] == tuning.nearest->memory);
  BOOST_TEST(!json.contains("training"));
  // A host that holds nothing refuses what is offloaded.
  const Tuning on_small_host = tune_to(std::size_t{4} << 30, std::size_t{1} << 20);
  BOOST_REQUIRE(!on_small_host.best.empty());
  for (const TunedOptions& tuned : on_small_host.best) BOOST_TEST(tuned.on_host * 2 <= std::size_t{1} << 20);
  BOOST_TEST(on_small_host.own.fits);
  PlanTableOptions offloaded = options_of({"--tune", "--offload-optimizer", "cpu"});
  offloaded.host_memory = std::size_t{1} << 20;
  BOOST_TEST(!tune(make_plan_table(offloaded)).own.fits);
}

BOOST_AUTO_TEST_CASE(what_training_takes) {
  const PlanTable table = make_plan_table(options_of({"--tokens", "1e6", "--price", "3"}));
  const TrainingCost cost = training_cost(table, 36, 65536);
  BOOST_TEST(cost.updates == 16.0);  // 15.3
  BOOST_TEST(cost.hours == 0.16, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(cost.device_hours == 0.64, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(cost.kwh == 0.448, boost::test_tools::tolerance(1e-12));  // 700 W
  BOOST_TEST(cost.cost == 1.92, boost::test_tools::tolerance(1e-12));
  const nlohmann::json json = use_json(table)["training"];
  BOOST_TEST(json["updates"] == 123);  // of 8 sequences of 1,024 tokens
  BOOST_TEST(json["gpu_hours"].get<double>() > 0);
  CHECK_CONTAINS(describe_use(table), "1.00 M tokens: 123 updates");
  BOOST_TEST(use_json(make_plan_table(options_of({})))["training"].is_null());
}

BOOST_AUTO_TEST_CASE(what_would_be_faster) {
  const auto gain_of = [](const Bottlenecks& b, std::string_view change) {
    return std::ranges::find(b.changes, change, &WhatIf::change)->gain;
  };
  for (const char* update_freq : {"1", "2", "5"}) {
    const PlanTable table = make_plan_table(options_of({}, {"--update-freq", update_freq}));
    const PlanVariant& variant = table.chosen().keeping;
    const ShardingOptions sharding = options_of_chosen(table, false);
    const auto look = [&](SlowRank slow) {
      return find_bottlenecks(*variant.model, sharding, table.chosen().mesh, table.options.cluster, *table.rates, {}, slow);
    };
    const Bottlenecks bottlenecks = look({});
    double sum = 0;
    for (const PathShare& part : bottlenecks.path) {
      BOOST_TEST(part.share > 0);
      sum += part.share;
    }
    BOOST_TEST(sum == 1, boost::test_tools::tolerance(1e-9));
    // The work on the path takes the whole update.
    const auto host = std::ranges::find(bottlenecks.path, "host", &PathShare::work);
    BOOST_TEST(host->share * variant.step.total == table.rates->update.value, boost::test_tools::tolerance(1e-6));
    for (const WhatIf& change : bottlenecks.changes) BOOST_TEST(change.gain >= -1e-9);
    Rates faster = *table.rates;
    faster.products.value *= 2, faster.fp32_products.value *= 2;
    const UpdateSimulation simulation(*variant.model, sharding, table.chosen().mesh, table.options.cluster);
    BOOST_TEST(gain_of(bottlenecks, "products x 2") == variant.step.total / simulation.predict(faster).total - 1);
    BOOST_TEST(gain_of(bottlenecks, "link to the host x 2") == 0);
    BOOST_TEST(gain_of(bottlenecks, "disk x 2") == 0);
    PlanTableOptions by_library = table.options;
    by_library.cluster.sum_order = SumOrder::library;
    BOOST_TEST(gain_of(bottlenecks, "--sum-order library") ==
               variant.step.total / make_plan_table(by_library).chosen().keeping.step.total - 1);
    BOOST_TEST(!look({.rank = 1, .factor = 1.5}).path.empty());
    const Bottlenecks alike = look({.rank = 1, .factor = 1});
    BOOST_REQUIRE(alike.path.size() == bottlenecks.path.size());
    for (std::size_t i = 0; i < alike.path.size(); ++i) BOOST_TEST(alike.path[i].share == bottlenecks.path[i].share);
  }
  const PlanTable one = make_plan_table(parse({"--arch", "gpt2", "--gpu", "h100"}));
  const nlohmann::json json = use_json(one);
  for (const auto& change : json["what_if"])
    if (change["change"] == "network x 2" || change["change"] == "links in a node x 2") BOOST_TEST(change["gain"] == 0.0);
  CHECK_CONTAINS(describe_use(one), "the critical path of an update: products ");
  BOOST_TEST(describe_use(make_plan_table(parse({"--arch", "gpt2"}))).empty());
}
