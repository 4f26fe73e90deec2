// fsdp-train under mpirun: the golden runs, identical bits, the planned memory, and evaluation of trained models.
#include <algorithm>
#include <cmath>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

/// Returns the options of a golden run on N ranks with B sequences per micro-batch on each rank.
std::vector<std::string> golden_options(const std::string& name, std::size_t B) {
  const json run = read_json(golden_folder(name) / "run.json");
  const auto text = [&](const char* key) { return run[key].dump(); };
  return {"--data",
          (golden_folder(name) / "train.bin").string(),
          "--model",
          golden_folder(name).string(),
          "--tokens-per-sample",
          text("tokens_per_sample"),
          "--batch-size",
          std::to_string(B),
          "--total-batch-size",
          text("global_batch"),
          "--lr",
          text("lr"),
          "--end-learning-rate",
          text("end_lr"),
          "--lr-scheduler",
          "polynomial_decay",
          "--power",
          text("power"),
          "--warmup-updates",
          text("warmup"),
          "--max-update",
          text("updates"),
          "--adam-betas",
          "(" + run["betas"][0].dump() + "," + run["betas"][1].dump() + ")",
          "--adam-eps",
          text("eps"),
          "--weight-decay",
          text("weight_decay"),
          "--clip-norm",
          text("clip_norm"),
          "--log-file",
          "metrics.jsonl",
          "--save-dir",
          "saves"};
}

std::vector<json> train(const std::string& name, int np, std::size_t B, const std::vector<std::string>& more) {
  const auto folder = fresh_folder();
  auto options = golden_options(name, B);
  options.insert(options.end(), more.begin(), more.end());
  const Outcome outcome = run(folder, mpirun(np, "fsdp-train", options));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return metrics(folder / "metrics.jsonl", "train");
}

std::vector<std::pair<double, double>> curve(const std::vector<json>& lines) {
  std::vector<std::pair<double, double>> points;
  for (const json& line : lines) points.emplace_back(line["loss"], line["gnorm"]);
  return points;
}

struct Golden {
  const char* name;
  std::vector<int> ranks;
  int strategies;  // at this number of ranks all strategies run; run.golden runs them for all models
  int one_by_one;  // at this number of ranks micro-batches of one sequence run, too
};
const Golden goldens[] = {{"gpt2-tied", {1, 3}, 3, 1}, {"llama-gqa", {1, 2, 4}, 4, 4}, {"llama3-tied", {2, 3, 4}, 2, 3}};
std::ostream& operator<<(std::ostream& out, const Golden& golden) { return out << golden.name; }

void compare_with_pytorch(const Golden& golden) {
  const json run = read_json(golden_folder(golden.name) / "run.json");
  for (const int np : golden.ranks) {
    const std::size_t B = 12u / static_cast<std::size_t>(np);
    const auto full = train(golden.name, np, B, {});
    BOOST_TEST_REQUIRE(full.size() == run["steps"].size());
    for (std::size_t u = 0; u < full.size(); ++u) {
      BOOST_TEST(std::abs(full[u]["loss"].get<double>() - run["steps"][u]["loss"].get<double>()) < 5e-6);
      BOOST_TEST(std::abs(full[u]["gnorm"].get<double>() / run["steps"][u]["gnorm"].get<double>() - 1) < 1e-5);
    }
    const auto expect_same = [&](const std::string& options) {  // bit for bit
      BOOST_CHECK_MESSAGE(curve(full) == curve(train(golden.name, np, B, split(options))), options);
    };
    if (np == golden.strategies) {
      expect_same("--sharding-strategy NO_SHARD --checkpoint-activations");
      for (const char* comm : {"shm", "mpi"})
        if (np < 4) expect_same(std::string("--comm-thread --comm ") + comm);
      const std::string group = np == 4 ? " --shard-group-size 2" : " --shard-group-size 3";
      if (np > 2)
        for (const auto& strategy :
             {std::string("SHARD_GRAD_OP"), std::string("optim"), "hybrid" + group, "_HYBRID_SHARD_ZERO2" + group})
          expect_same("--sharding-strategy " + strategy);
    }
    if (np == golden.one_by_one) {
      const auto one_by_one = train(golden.name, np, 1, {});
      for (std::size_t u = 0; u < full.size(); ++u)
        BOOST_TEST(std::abs(one_by_one[u]["loss"].get<double>() - full[u]["loss"].get<double>()) < 5e-6);
    }
  }
}

}  // namespace

BOOST_DATA_TEST_CASE(golden_runs_over_mpi, boost::unit_test::data::make(goldens), golden) { compare_with_pytorch(golden); }

BOOST_AUTO_TEST_CASE(memory_is_as_planned) {
  const auto folder = fresh_folder();
  for (const std::string strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"}) {
    std::vector<std::string> words = split(
        "--arch gpt2 --decoder-layers 6 --decoder-embed-dim 384 --decoder-attention-heads 6 --vocab-size 2000 "
        "--tokens-per-sample 256 --batch-size 4 --max-update 1 --log-file metrics.jsonl --save-dir saves-" +
        strategy + " --sharding-strategy " + strategy + (strategy[0] == 'h' ? " --shard-group-size 1" : ""));
    words.push_back((golden_folder("llama-gqa") / "train.bin").string());
    const Outcome outcome = run(folder, mpirun(2, "fsdp-train", words));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const double planned = metrics(folder / "metrics.jsonl", "start").back()["plan_peak_bytes"];
    const double measured = metrics(folder / "metrics.jsonl", "end").back()["mem_peak_bytes"];
    BOOST_TEST(std::abs(measured / planned - 1) < 0.02);
    const auto megabytes = [&](const std::string& before) {
      const std::size_t at = outcome.output.find(before);
      BOOST_TEST_REQUIRE(at != std::string::npos, outcome.output);
      std::size_t used = 0;
      const double value = std::stod(outcome.output.substr(at + before.size()), &used);
      BOOST_TEST_REQUIRE(outcome.output.substr(at + before.size() + used, 4) == " MiB");
      return value;
    };
    const double process = megabytes("the process         "), with_overheads = megabytes("used since its start, ");
    BOOST_TEST_MESSAGE(strategy << ": process " << process << " MiB, plan with overheads " << with_overheads << " MiB");
    BOOST_TEST(std::abs(process / with_overheads - 1) < 0.1);
  }
}

BOOST_AUTO_TEST_CASE(recomputed_blocks_are_chosen_by_the_memory) {
  const auto folder = fresh_folder();
  int number = 0;
  const std::string sizes =
      "--arch gpt2 --decoder-layers 6 --decoder-embed-dim 96 --decoder-attention-heads 6 --vocab-size 2000 --threads 1 "
      "--tokens-per-sample 256 --batch-size 4 --no-save --invariant ";  // pieces of logits have one size
  const auto start = [&](const std::string& options) {
    std::vector<std::string> words = split(sizes + "--max-update 3 --log-interval 1 --log-file metrics.jsonl --save-dir saves" +
                                           std::to_string(++number) + " " + options);
    words.push_back((golden_folder("llama-gqa") / "train.bin").string());
    fs::remove(folder / "metrics.jsonl");
    return run(folder, mpirun(2, "fsdp-train", words));
  };
  const auto trained = [&](const std::string& options) {
    const Outcome outcome = start(options);
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return std::pair(curve(metrics(folder / "metrics.jsonl", "train")),
                     metrics(folder / "metrics.jsonl", "start").back()["plan_peak_bytes"].get<std::size_t>());
  };
  const auto [losses, kept] = trained("");
  BOOST_TEST(losses.size() == 3u);
  for (const char* blocks : {"1", "4", "6"}) {
    const auto [same, bytes] = trained(std::string("--recompute-num-layers ") + blocks);
    BOOST_TEST((same == losses), blocks);
    BOOST_TEST(bytes < kept, blocks);
  }
  // All is free: nothing is recomputed. With a limit between what is needed with and without recomputation, some blocks are.
  const Outcome all = start("--recompute-num-layers auto");
  BOOST_TEST(all.code == 0, all.output);
  BOOST_TEST(all.says("--recompute-num-layers auto: 0 of 6 blocks are recomputed; a rank then needs "), all.output);
  const Outcome planned =
      run(folder, split(FSDP_BIN "/fsdp-plan " + sizes + "--ranks-per-node 2 --recompute-num-layers 4 --json"));
  BOOST_TEST_REQUIRE(planned.code == 0, planned.output);
  std::size_t limit = 0;
  const json table = json::parse(planned.output);
  for (const json& row : table["strategies"])
    if (row["chosen"]) limit = row["recomputing"]["memory"]["total"];
  const Outcome some = start("--recompute-num-layers auto --memory-limit " + std::to_string(limit));
  BOOST_TEST(some.code == 0, some.output);
  BOOST_TEST(some.says("--recompute-num-layers auto: 4 of 6 blocks are recomputed; a rank then needs "), some.output);
  BOOST_TEST((curve(metrics(folder / "metrics.jsonl", "train")) == losses));
  const std::string limited = "--memory-limit " + std::to_string(limit);
  const Outcome chosen = start(limited);  // nothing else is given, so the limit chooses
  BOOST_TEST(chosen.code == 0, chosen.output);
  BOOST_TEST(chosen.says("--memory-limit: 4 of 6 blocks are recomputed"), chosen.output);
  BOOST_TEST(chosen.says("fits with: --recompute-num-layers 4\n"), chosen.output);
  BOOST_TEST((curve(metrics(folder / "metrics.jsonl", "train")) == losses));
  const Outcome forced = start("--recompute-num-layers 1 " + limited);
  BOOST_TEST(forced.code != 0);
  BOOST_TEST(forced.says("use --recompute-num-layers 4 (a rank then needs "), forced.output);
  const Outcome without_effect = start("--offload-activations");
  BOOST_TEST(without_effect.code == 0, without_effect.output);
  BOOST_TEST(without_effect.says("nothing is offloaded to the host: on CPUs all memory is the host's"), without_effect.output);
  BOOST_TEST((curve(metrics(folder / "metrics.jsonl", "train")) == losses));
  for (const char* options : {"--memory-limit 1MiB", "--memory-limit 1MiB --recompute-num-layers auto"}) {
    const Outcome nothing = start(options);
    BOOST_TEST(nothing.code != 0);
    BOOST_TEST(nothing.says("and 1.00 MiB are allowed (--memory-limit); use more ranks, a smaller --batch-size or --"),
               nothing.output);
  }
  const Outcome too_many = start("--recompute-num-layers 7");
  BOOST_TEST(too_many.code != 0);
  BOOST_TEST(too_many.says("7 blocks cannot be recomputed (the model has 6); lower --recompute-num-layers"), too_many.output);
}

BOOST_AUTO_TEST_CASE(a_model_larger_than_a_rank_may_hold_is_trained_and_saved) {
  // 31 M parameters with gradients and moments take 473 MiB. The operating system limits each rank to 322 MiB of data.
  // The plan of four sharded ranks needs 242 MiB.
  const auto folder = fresh_folder();
  const auto limited = [&](const std::string& strategy) {
    auto command = mpirun(
        4, "fsdp-train",
        split("--arch gpt2 --decoder-layers 4 --vocab-size 2000 --tokens-per-sample 32 --max-update 1 --save-dir saves-" +
              strategy + " --sharding-strategy " + strategy));
    command.push_back((golden_folder("gpt2-tied") / "train.bin").string());
    const auto program = std::find(command.begin(), command.end(), std::string(FSDP_BIN) + "/fsdp-train");
    const std::vector<std::string> limit = {"sh", "-c", "ulimit -d 330000 && exec \"$@\"", "sh"};
    command.insert(program, limit.begin(), limit.end());
    return run(folder, command);
  };
  const Outcome full = limited("full");
  BOOST_TEST(full.code == 0, full.output);
  BOOST_TEST(fs::exists(folder / "saves-full" / "step-00000001" / "complete.json"));
  const Outcome none = limited("none");
  BOOST_TEST(none.code != 0);
  BOOST_TEST(none.says("of memory could not be allocated"), none.output);
}

BOOST_AUTO_TEST_CASE(what_was_trained_is_evaluated_and_sampled) {
  const auto folder = fresh_folder();
  {  // bytes that are easy to learn
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 600; ++i) text << "all work and no play makes jack a dull boy\n";
  }
  const auto tool = [&](const std::string& program, std::vector<std::string> words) {
    words.insert(words.begin(), std::string(FSDP_BIN) + "/" + program);
    const Outcome outcome = run(folder, words);
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return outcome;
  };
  tool("fsdp-tokenize", {"text.txt", "--out", "train.bin", "--valid-out", "valid.bin", "--valid-fraction", "0.1"});
  const Outcome trained = run(folder, mpirun(3, "fsdp-train",
                                             {"train.bin",
                                              "--valid",
                                              "valid.bin",
                                              "--arch",
                                              "gpt2",
                                              "--vocab-size",
                                              "256",
                                              "--decoder-layers",
                                              "2",
                                              "--decoder-embed-dim",
                                              "48",
                                              "--decoder-attention-heads",
                                              "3",
                                              "--tokens-per-sample",
                                              "64",
                                              "--batch-size",
                                              "4",
                                              "--lr",
                                              "5e-3",
                                              "--warmup-updates",
                                              "10",
                                              "--clip-norm",
                                              "1",
                                              "--lr-scheduler",
                                              "cosine",
                                              "--max-update",
                                              "450",
                                              "--log-file",
                                              "metrics.jsonl"}));
  BOOST_TEST_REQUIRE(trained.code == 0, trained.output);
  const double valid = metrics(folder / "metrics.jsonl", "valid").back()["loss"];
  BOOST_TEST(valid < 0.5);
  tool("fsdp-consolidate", {"checkpoints", "model.h5", "--format", "hdf5"});
  tool("fsdp-consolidate", {"checkpoints", "model", "--format", "safetensors"});
  const auto loss = [&](int np, const std::string& model) {
    const Outcome outcome = run(
        folder, mpirun(np, "fsdp-evaluate", {model, "valid.bin", "--tokens-per-sample", "64", "--batch-size", "4", "--json"}));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return json::parse(outcome.output)["loss"].get<double>();
  };
  const double sharded = loss(3, "checkpoints");
  BOOST_TEST(sharded == valid);
  BOOST_TEST(loss(3, "model.h5") == sharded);
  BOOST_TEST(loss(3, "model") == sharded);
  BOOST_TEST(std::abs(loss(2, "model") - sharded) < 1e-6);
  const Outcome sample =
      tool("fsdp-generate", {"model", "--prompt", "all work", "--max-new-tokens", "60", "--temperature", "0"});
  BOOST_TEST(sample.says("all work and no play makes jack a dull boy\nall work"));
  BOOST_TEST(tool("fsdp-generate", {"checkpoints", "--prompt", "all", "--seed", "4"}).output ==
             tool("fsdp-generate", {"model.h5", "--prompt", "all", "--seed", "4"}).output);
}
