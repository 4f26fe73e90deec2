// Runs that are stopped, asked to save, killed, and resumed.
#define BOOST_TEST_MODULE jobs.stopping
#include <algorithm>
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "golden.hpp"
#include "jobs/job.hpp"

using namespace fsdp::test;

namespace {

/// A run of `updates` out of 40, 12 sequences each, whatever the number of ranks.
std::vector<std::string> options(int np, int updates, const std::string& save_dir, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 3 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "32 "
      "--total-batch-size 12 --lr 3e-3 --lr-scheduler cosine --warmup-updates 5 --total-num-update 40 --clip-norm 1 "
      "--batch-size " +
      std::to_string(12 / np) + " --max-update " + std::to_string(updates) + " --save-dir " + save_dir + " --log-file " +
      save_dir + ".jsonl");
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<double> losses(const fs::path& folder, const std::string& save_dir) {
  std::vector<double> values;
  for (const json& line : metrics(folder / (save_dir + ".jsonl"), "train")) values.push_back(line["loss"]);
  return values;
}

void expect_code(const Outcome& outcome, int code) { BOOST_TEST_REQUIRE(outcome.code == code, outcome.output); }

std::size_t steps_done(const fs::path& folder, const std::string& save_dir) {
  return metrics(folder / (save_dir + ".jsonl"), "train").size();
}

/// The ranks of the job that `launcher` runs.
std::vector<pid_t> ranks_of(pid_t launcher) {
  std::vector<pid_t> ranks;
  std::ifstream children("/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) + "/children");
  for (pid_t child; children >> child;) ranks.push_back(child);
  return ranks;
}

}  // namespace

BOOST_AUTO_TEST_CASE(resuming_changes_no_bit_at_the_same_number_of_ranks) {
  const auto folder = fresh_folder();
  for (const std::string strategy : {"full", "none"}) {
    const std::vector<std::string> more = {"--sharding-strategy", strategy};
    expect_code(run(folder, mpirun(3, "fsdp-train", options(3, 12, "whole-" + strategy, more))), 0);
    expect_code(run(folder, mpirun(3, "fsdp-train", options(3, 5, "parts-" + strategy, more))), 0);
    expect_code(run(folder, mpirun(3, "fsdp-train", options(3, 12, "parts-" + strategy, more))), 0);
    BOOST_TEST(losses(folder, "whole-" + strategy) == losses(folder, "parts-" + strategy), boost::test_tools::per_element());
    const Outcome again = run(folder, mpirun(3, "fsdp-train", options(3, 12, "parts-" + strategy, more)));
    expect_code(again, 0);
    BOOST_TEST(again.says("nothing to do"));
    BOOST_TEST(!again.says("memory per rank:"));  // there was none
    const auto lines = metrics(folder / ("parts-" + strategy + ".jsonl"));
    BOOST_TEST(lines[lines.size() - 2]["type"] == "start");
    BOOST_TEST(lines.back()["type"] == "end");
    BOOST_TEST(lines.back()["step"] == 12);
  }
}

BOOST_AUTO_TEST_CASE(resuming_at_other_numbers_of_ranks_and_strategies) {
  const auto folder = fresh_folder();
  expect_code(run(folder, mpirun(2, "fsdp-train", options(2, 16, "whole"))), 0);
  expect_code(run(folder, mpirun(4, "fsdp-train", options(4, 4, "parts"))), 0);
  expect_code(run(folder, mpirun(3, "fsdp-train", options(3, 8, "parts", {"--wrap-layers", "2"}))), 0);
  expect_code(run(folder, mpirun(1, "fsdp-train", options(1, 10, "parts", {"--sharding-strategy", "none"}))), 0);
  expect_code(run(folder, mpirun(2, "fsdp-train", options(2, 11, "parts", {"--sharding-strategy", "optim"}))), 0);
  expect_code(
      run(folder, mpirun(4, "fsdp-train", options(4, 13, "parts", split("--sharding-strategy hybrid --shard-group-size 2")))),
      0);
  expect_code(run(folder, mpirun(3, "fsdp-train", options(3, 14, "parts", split("--wrap-policy size --min-num-params 9k")))),
              0);
  expect_code(
      run(folder, mpirun(2, "fsdp-train", options(2, 16, "parts", split("--sharding-strategy grad-op --ignore-params *ln*")))),
      0);
  const auto whole = losses(folder, "whole"), parts = losses(folder, "parts");
  BOOST_TEST_REQUIRE(whole.size() == parts.size());
  for (std::size_t u = 0; u < whole.size(); ++u) BOOST_TEST(std::abs(whole[u] - parts[u]) < 5e-6);
}

BOOST_AUTO_TEST_CASE(resuming_with_data_cut_another_way_says_where_it_goes_on) {
  const auto folder = fresh_folder();
  expect_code(run(folder, mpirun(2, "fsdp-train", options(2, 4, "saves"))), 0);
  auto words = options(2, 6, "saves");
  words[std::find(words.begin(), words.end(), "--tokens-per-sample") - words.begin() + 1] = "16";
  const Outcome shorter = run(folder, mpirun(2, "fsdp-train", words));
  expect_code(shorter, 0);
  BOOST_TEST(shorter.times_said("samples of 32 tokens were trained on, now of 16") == 1u);
  BOOST_TEST(metrics(folder / "saves.jsonl", "restore").back()["step"] == 4);
  words = options(2, 8, "saves", {"--shuffle"});
  const Outcome shuffled = run(folder, mpirun(2, "fsdp-train", words));
  expect_code(shuffled, 0);
  BOOST_TEST(shuffled.times_said("read from the start") == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_trained_may_change_from_run_to_run) {
  const auto folder = fresh_folder();
  expect_code(run(folder, mpirun(2, "fsdp-train", options(2, 3, "saves", {"--freeze", "h.0.*"}))), 0);
  const Outcome other = run(folder, mpirun(3, "fsdp-train", options(3, 5, "saves", {"--train-only", "h.*"})));
  expect_code(other, 0);
  BOOST_TEST(other.times_said("12 parameter tensors were not trained before") == 1u);
  // What was frozen throughout has not changed: consolidated at both ends, the embeddings are the same.
  const auto consolidated = [&](const std::string& step) {
    expect_code(run(folder, {std::string(FSDP_BIN) + "/fsdp-consolidate", "saves/step-0000000" + step, "model" + step,
                             "--format", "safetensors"}),
                0);
    return read_tensors(folder / ("model" + step) / "model.safetensors");
  };
  const auto before = consolidated("3"), after = consolidated("5");
  BOOST_TEST(before.at("transformer.wte.weight") == after.at("transformer.wte.weight"), boost::test_tools::per_element());
  BOOST_CHECK(before.at("transformer.h.0.mlp.c_fc.weight") != after.at("transformer.h.0.mlp.c_fc.weight"));
  BOOST_CHECK(before.at("transformer.h.2.mlp.c_fc.weight") != after.at("transformer.h.2.mlp.c_fc.weight"));
}

BOOST_AUTO_TEST_CASE(sigusr1_to_the_launcher_saves_and_stops) {
  const auto folder = fresh_folder();
  const auto forever = options(4, 100000, "saves");
  const Outcome stopped = run(folder, mpirun(4, "fsdp-train", forever), [&](pid_t launcher) {
    wait_until([&] { return steps_done(folder, "saves") >= 3; });
    kill(launcher, SIGUSR1);
  });
  expect_code(stopped, 75);
  BOOST_TEST(metrics(folder / "saves.jsonl", "stop").size() == 1u);
  const std::size_t done = steps_done(folder, "saves");
  BOOST_TEST(metrics(folder / "saves.jsonl", "save").back()["step"] == done);
  const Outcome resumed = run(folder, mpirun(2, "fsdp-train", options(2, static_cast<int>(done) + 2, "saves")));
  expect_code(resumed, 0);
  BOOST_TEST(metrics(folder / "saves.jsonl", "restore").back()["step"] == done);
  BOOST_TEST(steps_done(folder, "saves") == done + 2);
}

BOOST_AUTO_TEST_CASE(sigusr2_saves_and_goes_on_and_files_do_the_same) {
  const auto folder = fresh_folder();
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", options(2, 100000, "saves")), [&](pid_t launcher) {
    wait_until([&] { return steps_done(folder, "saves") >= 2; });
    kill(launcher, SIGUSR2);
    wait_until([&] { return metrics(folder / "saves.jsonl", "save").size() == 1; });
    std::ofstream(folder / "saves" / "save") << "";
    wait_until([&] { return metrics(folder / "saves.jsonl", "save").size() == 2; });
    wait_until([&] { return !fs::exists(folder / "saves" / "save"); });
    BOOST_TEST(!fs::exists(folder / "saves" / "save"));
    std::ofstream(folder / "saves" / "stop") << "";
  });
  expect_code(outcome, 75);
  BOOST_TEST(metrics(folder / "saves.jsonl", "save").size() == 3u);
  BOOST_TEST(!fs::exists(folder / "saves" / "stop"));
}

BOOST_AUTO_TEST_CASE(a_killed_rank_ends_the_job_and_leaves_the_last_save) {
  const auto folder = fresh_folder();
  const auto started = std::chrono::steady_clock::now();
  const Outcome killed =
      run(folder, mpirun(4, "fsdp-train", options(4, 100000, "saves", {"--save-interval-updates", "5"})), [&](pid_t launcher) {
        wait_until([&] { return metrics(folder / "saves.jsonl", "save").size() >= 2; });
        const auto ranks = ranks_of(launcher);
        BOOST_TEST_REQUIRE(ranks.size() == 4u);
        kill(ranks[2], SIGKILL);
      });
  BOOST_TEST(killed.code != 0);
  BOOST_TEST(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count() < 60);
  const Outcome resumed =
      run(folder, mpirun(2, "fsdp-train", options(2, static_cast<int>(steps_done(folder, "saves")) + 20, "saves")));
  expect_code(resumed, 0);
  BOOST_TEST(metrics(folder / "saves.jsonl", "restore").back()["step"].get<int>() >= 10);
}

BOOST_AUTO_TEST_CASE(a_rank_that_hangs_is_named_and_ends_the_job) {
  for (const std::string comm : {"shm", "mpi", "shm --comm-thread", "mpi --comm-thread"}) {
    const auto folder = fresh_folder() / comm;
    fs::create_directories(folder);
    const auto words = options(4, 100000, "saves", split("--collective-timeout 2s --comm " + comm));
    const Outcome outcome = run(folder, mpirun(4, "fsdp-train", words), [&](pid_t launcher) {
      wait_until([&] { return steps_done(folder, "saves") >= 2; });
      const auto ranks = ranks_of(launcher);
      BOOST_TEST_REQUIRE(ranks.size() == 4u);
      kill(ranks[2], SIGSTOP);
    });
    BOOST_TEST(outcome.code == 1, outcome.output);
    BOOST_TEST(outcome.says("rank 2 on "), outcome.output);
    BOOST_TEST(outcome.says("within 2.0 s"), outcome.output);
  }
}
