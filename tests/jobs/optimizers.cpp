// Optimizers under mpirun: PyTorch's runs, resuming after a stop, and the state of another optimizer.
#include <algorithm>
#include <cmath>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

/// Returns the options of a golden run of optimizers on `np` ranks, with one micro-batch.
std::vector<std::string> options_of(const std::string& name, int np) {
  const json run = read_json(golden_folder("optimizers.json"))[name];
  const auto folder = golden_folder("gpt2-tied");
  const std::string kind = name.substr(0, name.find('-'));
  std::vector<std::string> words = {"--data", (folder / "train.bin").string(), "--model", folder.string(), "--optimizer", kind};
  const auto add = [&](const char* option, const json& value) {
    words.insert(words.end(), {option, value.is_string() ? value.get<std::string>() : value.dump()});
  };
  add("--tokens-per-sample", run["tokens_per_sample"]);
  add("--batch-size", 12 / np);
  add("--lr", run["lr"]);
  add("--end-learning-rate", run["end_lr"]);
  add("--lr-scheduler", "polynomial_decay");
  add("--warmup-updates", run["warmup"]);
  add("--max-update", run["updates"]);
  add("--adam-betas", "(" + run["betas"][0].dump() + "," + run["betas"][1].dump() + ")");
  add("--adam-eps", run["eps"]);
  add("--weight-decay", run["weight_decay"]);
  add("--clip-norm", run["clip_norm"]);
  if (run.contains("momentum")) add("--momentum", run["momentum"]);
  if (run.value("nesterov", false)) words.push_back("--nesterov");
  if (run.value("amsgrad", false)) words.push_back("--amsgrad");
  add("--log-file", "metrics.jsonl");
  add("--save-dir", "saves");
  return words;
}

std::vector<std::string> plus(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

using Curve = std::vector<std::pair<double, double>>;

Curve curve(const fs::path& folder) {
  Curve points;
  for (const json& line : metrics(folder / "metrics.jsonl", "train")) points.emplace_back(line["loss"], line["gnorm"]);
  return points;
}

Curve train(const std::string& name, int np, const std::vector<std::string>& more) {
  const auto folder = fresh_folder();
  const Outcome outcome = run(folder, mpirun(np, "fsdp-train", plus(options_of(name, np), more)));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return curve(folder);
}

}  // namespace

BOOST_AUTO_TEST_CASE(runs_of_pytorch_over_mpi) {
  for (const std::string name : {"sgd-nesterov", "adam-amsgrad", "lion", "lamb", "adafactor", "muon"}) {
    const json run = read_json(golden_folder("optimizers.json"))[name];
    const double bound = name == "muon" ? 5e-4 : 1e-5;
    for (const int np : {2, 3}) {
      const Curve full = train(name, np, {});
      BOOST_TEST_REQUIRE(full.size() == 20u);
      for (std::size_t u = 0; u < full.size(); ++u)
        BOOST_TEST(std::abs(full[u].first - run["steps"][u]["loss"].get<double>()) < bound, name);
      BOOST_TEST((full == train(name, np, {"--sharding-strategy", "none", "--comm-thread"})), name);
      BOOST_TEST((full == train(name, np, {"--sharding-strategy", "optim", "--comm", "mpi"})), name);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_resumed_run_has_the_same_bits) {
  for (const std::string name : {"adafactor", "muon", "lamb"})
    for (const std::string type : {"fp32", "bf16"}) {
      const Curve at_once = train(name, 3, {"--optimizer-state-dtype", type});
      const auto folder = fresh_folder();
      const auto words = plus(options_of(name, 3), {"--optimizer-state-dtype", type});
      auto half = plus(words, {"--total-num-update", "20"});
      *(std::find(half.begin(), half.end(), "--max-update") + 1) = "9";
      BOOST_TEST(run(folder, mpirun(3, "fsdp-train", half)).code == 0);
      BOOST_TEST(run(folder, mpirun(3, "fsdp-train", words)).code == 0);
      BOOST_TEST((curve(folder) == at_once), name + ", " + type);
    }
}

BOOST_AUTO_TEST_CASE(another_optimizers_state) {
  const auto folder = fresh_folder();
  const auto go = [&](const std::string& last, const std::vector<std::string>& more) {
    return run(folder,
               mpirun(2, "fsdp-train",
                      plus({(golden_folder("gpt2-tied") / "train.bin").string(), "--model", golden_folder("gpt2-tied").string(),
                            "--tokens-per-sample", "32", "--batch-size", "2", "--max-update", last},
                           more)));
  };
  BOOST_TEST(go("3", {"--optimizer", "cpu_adam"}).code == 0);
  for (const std::vector<std::string>& other : {split("--optimizer muon"), split("--optimizer adam")}) {
    const Outcome outcome = go("4", other);
    BOOST_TEST_CONTEXT(outcome.output) {
      BOOST_TEST(outcome.code == 2);
      BOOST_TEST(outcome.says("holds the state of --optimizer cpu_adam (this run has --optimizer " + other[1] + ")"));
      BOOST_TEST(outcome.says("--reset-optimizer"));
      BOOST_TEST(outcome.times_said("fsdp-train: ") == 1u);
    }
  }
  const Outcome without = go("4", split("--optimizer adamw --amsgrad"));
  BOOST_TEST(without.code == 2);
  BOOST_TEST(without.says("holds no max_exp_avg_sq of --optimizer adamw"), without.output);
  BOOST_TEST(go("4", split("--optimizer adamw --amsgrad --weight-decay 0.2")).code == 2);
  BOOST_TEST(go("4", split("--optimizer adamw")).code == 0);  // cpu_adam is the same algorithm
  const Outcome fresh = go("5", split("--optimizer muon --reset-optimizer"));
  BOOST_TEST(fresh.code == 0, fresh.output);
  BOOST_TEST(fresh.says("the optimizer's state starts at zero"));
  BOOST_TEST(fresh.says("step 5/5"));
  BOOST_TEST(go("6", split("--optimizer muon")).code == 0);
  // The trained model can be consolidated.
  const Outcome whole = run(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate checkpoints model.h5 --verify"));
  BOOST_TEST(whole.code == 0, whole.output);
}

BOOST_AUTO_TEST_CASE(partial_fine_tuning_goes_on) {
  // Only matrices or only vectors are trained, so that some states of the optimizer do not exist.
  for (const auto& [name, only] : std::vector<std::pair<std::string, std::string>>{
           {"adafactor", "*.bias"}, {"muon", "*.mlp.c_fc.weight"}, {"adafactor", "*.mlp.c_fc.weight"}}) {
    const auto folder = fresh_folder();
    const auto words = plus(options_of(name, 2), {"--train-only", only, "--total-num-update", "20"});
    auto half = words;
    *(std::find(half.begin(), half.end(), "--max-update") + 1) = "9";
    for (const auto& command : {half, words}) {
      const Outcome outcome = run(folder, mpirun(2, "fsdp-train", command));
      BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
      BOOST_TEST(!outcome.says("were not trained before"));
    }
    BOOST_TEST((curve(folder) == train(name, 2, {"--train-only", only, "--total-num-update", "20"})));
  }
}
