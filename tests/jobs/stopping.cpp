// Runs that are stopped, asked to save, killed, and resumed.
#include <algorithm>
#include <chrono>
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"
#include "support/tokens.hpp"

using namespace fsdp::test;

namespace {

/// Returns the options of a run that does `updates` of 40 updates, each of 12 sequences, on any number of ranks.
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

/// Returns the processes of the ranks that `launcher` started.
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
    BOOST_TEST(!again.says("memory per rank:"));  // no update was done
    const auto lines = metrics(folder / ("parts-" + strategy + ".jsonl"));
    BOOST_TEST(lines[lines.size() - 2]["type"] == "start");
    BOOST_TEST(lines.back()["type"] == "end");
    BOOST_TEST(lines.back()["step"] == 12);
  }
}

// The environment has the job's end time, as in newer versions of Slurm, or a script named squeue prints it.
BOOST_AUTO_TEST_CASE(a_run_stops_before_the_end_of_its_job) {
  const auto folder = fresh_folder();
  const auto now = [] { return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()); };
  const auto squeue_says = [&](const std::string& text, const std::string& job = "7") {
    std::ofstream(folder / "squeue") << "#!/bin/sh\n[ \"$SLURM_TIME_FORMAT $*\" = '%s -h -o %e -j " << job << "' ] && " << text
                                     << "\n";
    fs::permissions(folder / "squeue", fs::perms::owner_all);
  };
  const auto train = [&](int np, int updates, const std::string& lead, const std::vector<std::string>& environment) {
    std::vector<std::string> before = {"env", "-u", "SLURM_JOB_ID", "PATH=" + folder.string() + ":" + std::getenv("PATH")};
    before.insert(before.end(), environment.begin(), environment.end());
    return run(folder,
               mpirun(np, "fsdp-train",
                      options(np, updates, "saves", split("--no-async-save --save-interval-updates 50 --stop-before " + lead)),
                      before));
  };
  const Outcome no_job = train(2, 2, "3s", {});
  expect_code(no_job, 2);
  BOOST_TEST(no_job.times_said("this is not a Slurm job") == 1u);
  squeue_says("false");
  const Outcome silent = train(1, 2, "3s", {"SLURM_JOB_ID=7"});
  expect_code(silent, 2);
  BOOST_TEST(silent.says("squeue does not report on "));
  const Outcome late = train(2, 2, "3s", {"SLURM_JOB_ID=7", "SLURM_JOB_END_TIME=" + std::to_string(now() + 2)});
  expect_code(late, 2);
  BOOST_TEST(late.times_said("--stop-before leaves no time to train (the job ends in ") == 1u);
  squeue_says("echo NONE");
  const Outcome endless = train(2, 2, "3s", {"SLURM_JOB_ID=7"});
  expect_code(endless, 0);
  BOOST_TEST(endless.times_said("this job has no time limit") == 1u);
  // The job gets three more seconds while it runs. For an array job, squeue is asked about JOB_TASK, here 7_3.
  const auto end = now() + 8;
  squeue_says("echo " + std::to_string(end));
  const Outcome stopped = train(2, 1'000'000, "2s", {"SLURM_JOB_ID=7", "SLURM_JOB_END_TIME=" + std::to_string(end - 3)});
  expect_code(stopped, 75);
  BOOST_TEST(now() >= end - 2);
  BOOST_TEST(now() <= end);
  BOOST_TEST(stopped.says("(the job ends in "));
  BOOST_TEST(stopped.says("the same command continues (mpirun reports exit code 75 as an abort; all is saved)"));
  const std::size_t done = metrics(folder / "saves.jsonl", "stop").back()["step"];
  squeue_says("echo " + std::to_string(now() + 100), "7_3");
  // The run saves once before its end. The save takes longer than the time that --stop-before leaves.
  const std::size_t more = (done / 50 + 1) * 50 + 1;
  const Outcome again =
      train(1, static_cast<int>(more), "0.000001s", {"SLURM_JOB_ID=9", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=3"});
  BOOST_TEST(again.times_said("may be too short (the last update and the last save took ") == 1u);
  expect_code(again, 0);
  BOOST_TEST(metrics(folder / "saves.jsonl", "restore").back()["step"] == done);
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
  BOOST_TEST(shorter.times_said("sequences had 32 tokens and now have 16") == 1u);
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
  BOOST_TEST(other.times_said("and 11 other parameters were not trained when") == 1u);
  // The embeddings were frozen in both runs, so the consolidated embeddings are the same.
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

BOOST_AUTO_TEST_CASE(a_validation_does_not_keep_a_run_from_stopping) {
  const auto folder = fresh_folder();
  write_token_file(folder / "long.bin", std::vector<std::uint16_t>(8'000'000, 7));  // validates for minutes
  const auto validated = options(2, 40, "long", {"--valid", "long.bin", "--validate-interval-updates", "1"});
  std::chrono::steady_clock::time_point asked;
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", validated), [&](pid_t launcher) {
    wait_until([&] { return steps_done(folder, "long") == 1; });
    ::usleep(300'000);
    asked = std::chrono::steady_clock::now();
    kill(launcher, SIGUSR1);
  });
  expect_code(outcome, 75);
  BOOST_TEST(outcome.says("the validation after update 1 ends without a result, because the run stops"), outcome.output);
  BOOST_TEST(std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count() < 30);
  BOOST_TEST(steps_done(folder, "long") == 1u);  // the next start makes the validation of this update first
  BOOST_TEST(metrics(folder / "long.jsonl", "save").size() == 1u);
  BOOST_TEST(metrics(folder / "long.jsonl", "valid").empty());
}

BOOST_AUTO_TEST_CASE(a_save_counts_whatever_training_does_after_it) {
  const auto folder = fresh_folder();
  write_token_file(folder / "long.bin", std::vector<std::uint16_t>(8'000'000, 7));  // validates for minutes
  for (const std::string more : {"", " --no-async-save"}) {
    const std::string name = more.empty() ? "meanwhile" : "waiting", log = name + ".jsonl";
    const auto words =
        options(2, 40, name, split("--valid long.bin --validate-interval-updates 1 --save-interval-updates 1" + more));
    const Outcome killed = run(folder, mpirun(2, "fsdp-train", words), [&](pid_t launcher) {
      wait_until([&] { return !metrics(folder / log, "save").empty(); });
      for (const pid_t rank : ranks_of(launcher)) kill(rank, SIGKILL);
    });
    BOOST_TEST(killed.code != 0);
    BOOST_TEST(steps_done(folder, name) == 1u);
    BOOST_TEST(metrics(folder / log, "valid").empty());
    BOOST_TEST(killed.says("saved " + name + "/step-00000001 in "), killed.output);
    expect_code(run(folder, mpirun(3, "fsdp-train", options(3, 2, name))), 0);
    BOOST_TEST(metrics(folder / log, "restore").back()["step"] == 1);
  }
}

BOOST_AUTO_TEST_CASE(a_save_folder_that_is_replaced_is_not_written_to) {
  const auto folder = fresh_folder();
  const auto words = options(2, 1'000'000, "saves", split("--save-interval-updates 20 --keep-last 2"));
  const Outcome outcome = run(folder, mpirun(2, "fsdp-train", words), [&](pid_t) {
    wait_until([&] { return metrics(folder / "saves.jsonl", "save").size() >= 2; });
    fs::rename(folder / "saves", folder / "moved");
    fs::create_directories(folder / "saves" / "flight");
    std::ofstream(folder / "saves" / "flight" / "rank-00000-of-00002.flight") << "another run's";
  });
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.times_said("fsdp-train: ") == 1u, outcome.output);
  BOOST_TEST(outcome.says("saves is no longer this run's save folder"), outcome.output);
  BOOST_TEST(fs::exists(folder / "saves" / "flight" / "rank-00000-of-00002.flight"));
  BOOST_TEST(std::distance(fs::directory_iterator(folder / "saves"), {}) == 1);
  BOOST_TEST(run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect moved --verify")).code == 0);
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
  const int from = metrics(folder / "saves.jsonl", "restore").back()["step"].get<int>();
  BOOST_TEST(from >= 10);
  // The metrics have each update once, and list the lost ones.
  const auto trained = metrics(folder / "saves.jsonl", "train");
  for (std::size_t u = 0; u < trained.size(); ++u) BOOST_TEST(trained[u]["step"].get<std::size_t>() == u + 1);
  const auto lost = metrics(folder / "saves.jsonl", "lost");
  for (const json& line : lost) BOOST_TEST(line["step"].get<int>() > from);
  BOOST_TEST(resumed.says("which this run repeats") == !lost.empty(), resumed.output);
  const json end = metrics(folder / "saves.jsonl", "end").back(), spent = end["time_spent"];
  BOOST_TEST_MESSAGE(end.dump());
  BOOST_TEST(spent["starts"] == 2);
  double useful_s = 0, lost_s = 0;
  for (const json& line : trained) useful_s += 1e-3 * line["ms"].get<double>();
  for (const json& line : lost) lost_s += 1e-3 * line["ms"].get<double>();
  BOOST_TEST(std::abs(spent["useful_s"].get<double>() - useful_s) < 1e-6);
  BOOST_TEST(std::abs(spent["lost_s"].get<double>() - lost_s) < 1e-6);
  BOOST_TEST(end["goodput"].get<double>() == spent["useful_s"].get<double>() / spent["running_s"].get<double>());
  BOOST_TEST(end["goodput"].get<double>() > 0);
  BOOST_TEST(end["goodput"].get<double>() < 1);
  BOOST_TEST(resumed.says("goodput "), resumed.output);
  // At each log interval, the metrics name the slowest rank.
  for (const json& line : trained) {
    BOOST_TEST(line.contains("straggler") == (line["step"].get<int>() % 10 == 0));
    if (!line.contains("straggler")) continue;
    const json slowest = line["straggler"];
    BOOST_TEST(slowest["rank"].get<int>() < 4);
    BOOST_TEST(!slowest["host"].get<std::string>().empty());
    BOOST_TEST(slowest["ms"].get<double>() >= slowest["median_ms"].get<double>());
  }
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
      // Without --comm-thread, first suspend all ranks for longer than the time-out, while three ranks wait for the
      // fourth.
      if (!comm.ends_with("--comm-thread")) {
        kill(ranks[2], SIGSTOP);
        ::usleep(100'000);
        for (const pid_t rank : ranks) kill(rank, SIGSTOP);
        ::usleep(2'500'000);
        const std::size_t done = steps_done(folder, "saves");
        for (const pid_t rank : ranks) kill(rank, SIGCONT);
        wait_until([&] { return steps_done(folder, "saves") >= done + 10; });
      }
      kill(ranks[2], SIGSTOP);
    });
    BOOST_TEST(outcome.code == 1, outcome.output);
    // On a busy machine the message may also name a rank that waits: "ranks 0 and 2 on".
    BOOST_TEST((outcome.says("rank 2 on ") || outcome.says(" and 2 on ")), outcome.output);
    BOOST_TEST(outcome.says("within 2.0 s"), outcome.output);
    // The message also names the unit, except for sums over the whole update and what the training loop exchanges.
    BOOST_TEST((outcome.says("-gather of ") || outcome.says("-scatter of ") || outcome.says("all-reduce within")),
               outcome.output);
  }
}
