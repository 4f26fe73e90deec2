// An interrupted run is the undisturbed run: the same losses, norms, validations, samples, best step and end, whenever it is
// stopped or killed. Usage: `interrupting -- ROUNDS SEED`.
#include <cmath>
#include <random>

#include <boost/test/unit_test.hpp>

#include "jobs/fault.hpp"
#include "support/tokens.hpp"

using namespace fsdp::test;

namespace {

/// Tokens with a pattern that a model learns from few updates.
void write_tokens(const fs::path& file, std::size_t count, unsigned seed) {
  std::minstd_rand dice(seed);
  std::vector<std::uint16_t> tokens = {1};
  while (tokens.size() < count) tokens.push_back(static_cast<std::uint16_t>((tokens.back() * 5 + dice() % 12) % 200));
  write_token_file(file, tokens);
}

Outcome train(const fs::path& folder, const std::string& save_dir, const std::string& more, const Fault& fault) {
  return run(folder, mpirun(2, "fsdp-train",
                            split("train.bin --valid valid.bin --arch gpt2 --vocab-size 256 --tokenizer bytes --decoder-layers "
                                  "1 --decoder-embed-dim 32 --decoder-attention-heads 2 --tokens-per-sample 32 --batch-size 4 "
                                  "--lr 1e-2 --validate-interval-updates 2 --eval-on-start "
                                  "--sample-interval-updates 3 --save-interval-updates 3 --ema-decay 0.7 --no-report "
                                  "--save-dir " +
                                  save_dir + " " + more),
                            with(fault, folder, save_dir)));
}

/// What a run has computed: a line for each update, validation and sample, in the order of the metrics.
std::vector<std::string> computed(const fs::path& folder, const std::string& save_dir) {
  std::vector<std::string> lines;
  for (const json& line : metrics(folder / save_dir / "metrics.jsonl")) {
    if (line["type"] == "valid" || line["type"] == "sample" || line["type"] == "train") {
      json kept;
      for (const char* key : {"type", "step", "loss", "max_loss", "gnorm", "lr", "tokens", "text"})
        if (line.contains(key)) kept[key] = line[key];
      lines.push_back(kept.dump(-1, ' ', true, json::error_handler_t::replace));
    }
  }
  return lines;
}

long calls_of_rank_0(const fs::path& folder) {
  std::ifstream file(folder / "calls");
  long calls = 0;
  for (std::string line; std::getline(file, line);) calls += line.starts_with("0 ") && !line.starts_with("0 exit");
  return calls;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_start_with_nothing_to_do_repairs_the_link_to_the_best_step) {
  const auto folder = fresh_folder();
  write_tokens(folder / "train.bin", 600, 1);
  write_tokens(folder / "valid.bin", 1000, 2);
  const std::string more = "--keep-best loss --max-update 4";
  BOOST_TEST_REQUIRE(train(folder, "whole", more, {.calls = "rename", .name = "/best"}).code == 0);
  BOOST_TEST(fs::read_symlink(folder / "whole" / "best") == "step-00000004");
  const Fault last = {.calls = "rename", .at = calls_of_rank_0(folder), .name = "/best"};
  BOOST_TEST(train(folder, "killed", more, last).code != 0);
  BOOST_TEST(fs::read_symlink(folder / "killed" / "best") == "step-00000002");
  BOOST_TEST(train(folder, "killed", more, {}).says("nothing to do"));
  BOOST_TEST(fs::read_symlink(folder / "killed" / "best") == "step-00000004");
}

BOOST_AUTO_TEST_CASE(an_interrupted_run_is_the_undisturbed_run) {
  const auto& given = boost::unit_test::framework::master_test_suite();
  const int rounds = given.argc > 1 ? std::stoi(given.argv[1]) : 1;
  const unsigned seed = given.argc > 2 ? static_cast<unsigned>(std::stoul(given.argv[2])) : 3;
  BOOST_TEST_MESSAGE("seed " << seed);
  std::minstd_rand dice(seed);
  const auto folder = fresh_folder();
  write_tokens(folder / "train.bin", 600, 1);
  write_tokens(folder / "valid.bin", 1000, 2);
  for (const std::string more :
       {"--keep-best loss --early-stopping 3 --keep-last 2 --use-ema --max-update 60", "--max-update 14"}) {
    const bool judges = more.starts_with("--keep-best");
    const std::string whole = judges ? "whole" : "whole-plain";
    const Outcome undisturbed = train(folder, whole, more, {});
    BOOST_TEST_REQUIRE(undisturbed.code == 0, undisturbed.output);
    const long calls = calls_of_rank_0(folder);
    BOOST_TEST_REQUIRE(calls > 100);
    const auto expected = computed(folder, whole);
    if (judges) {
      BOOST_TEST(undisturbed.says("stopped early"), undisturbed.output);
      BOOST_TEST(fs::read_symlink(folder / whole / "best") != fs::path("step-00000002"));
    }
    for (int round = 0; round < rounds; ++round) {
      const std::string parts = whole + "-parts-" + std::to_string(round);
      Outcome outcome;
      int stops = 0, kills = 0;
      for (int start = 0; start < 8 && outcome.code != 0; ++start) {
        Fault fault = {.what = start % 2 == 0 ? "ask" : "kill", .at = 10 + static_cast<long>(dice() % (calls / 3)), .rank = 0};
        outcome = train(folder, parts, more, fault);
        BOOST_TEST_MESSAGE(parts << ", start " << start << ": " << fault.what << " at call " << fault.at << ", exit code "
                                 << outcome.code << ", " << computed(folder, parts).size() << " lines");
        stops += outcome.code == 75, kills += outcome.code != 75 && outcome.code != 0;
      }
      BOOST_TEST(stops > 0);
      BOOST_TEST(kills > 0);
      if (outcome.code != 0) outcome = train(folder, parts, more, {});
      BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
      BOOST_TEST(computed(folder, parts) == expected, boost::test_tools::per_element());
      if (judges) BOOST_TEST(fs::read_symlink(folder / parts / "best") == fs::read_symlink(folder / whole / "best"));
      const Outcome same = run(folder, {std::string(FSDP_BIN) + "/fsdp-inspect", whole, parts});
      BOOST_TEST(same.says("are the same, bit for bit"), same.output);
      const Outcome again = train(folder, parts, more, {});
      BOOST_TEST(again.says("nothing to do"), again.output);
      BOOST_TEST(computed(folder, parts) == expected, boost::test_tools::per_element());
    }
  }
}

// Slurm requeues a job with the same command, and slurm/job.sh starts the run again if a node has died.
BOOST_AUTO_TEST_CASE(options_of_the_first_start_apply_once_per_job) {
  const auto folder = fresh_folder();
  write_tokens(folder / "train.bin", 600, 1);
  const auto start = [&](const std::string& save_dir, int updates, const std::string& more, const std::string& environment) {
    const std::string words =
        "train.bin --arch gpt2 --vocab-size 256 --decoder-layers 1 --decoder-embed-dim 32 "
        "--decoder-attention-heads 2 --tokens-per-sample 32 --batch-size 4 --lr 1e-9 --no-report "
        "--save-dir ";
    const Outcome outcome =
        run(folder, mpirun(1, "fsdp-train", split(words + save_dir + " --max-update " + std::to_string(updates) + " " + more),
                           split("env -u SLURM_JOB_ID -u SLURM_RESTART_COUNT " + environment)));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return outcome;
  };
  const auto losses = [&](const std::string& save_dir) {
    std::vector<double> all;
    for (const json& line : metrics(folder / save_dir / "metrics.jsonl", "train")) all.push_back(line["loss"]);
    return all;
  };
  start("s", 4, "", "");
  const std::string once = "--reset-dataloader --reset-optimizer", again = "are not applied again";
  BOOST_TEST(!start("s", 6, once, "SLURM_JOB_ID=7 SLURM_RESTART_COUNT=1").says(again));  // it was killed before its first save
  BOOST_TEST(start("s", 7, once, "SLURM_JOB_ID=7 SLURM_RESTART_COUNT=1").says(again));
  BOOST_TEST(start("s", 8, once, "SLURM_JOB_ID=7 FSDP_STARTS_AGAIN=1").says(again));
  BOOST_TEST(!start("s", 9, once, "SLURM_JOB_ID=7").says(again));  // another command of the same job
  BOOST_TEST(!start("s", 10, once, "SLURM_JOB_ID=8").says(again));
  const auto found = losses("s");
  const std::vector<std::size_t> batches = {0, 1, 2, 3, 0, 1, 2, 3, 0, 0};
  BOOST_TEST_REQUIRE(found.size() == batches.size());
  for (std::size_t u = 0; u < found.size(); ++u) BOOST_TEST(std::abs(found[u] - found[batches[u]]) < 1e-5, u);
  BOOST_TEST(std::abs(found[0] - found[1]) > 1e-3);

  start("other", 6, "--restore s/step-00000004", "SLURM_JOB_ID=7");
  BOOST_TEST(start("other", 7, "--restore s/step-00000004", "SLURM_JOB_ID=7 SLURM_RESTART_COUNT=1").says("restored step 6"));
}

BOOST_AUTO_TEST_CASE(a_decay_that_other_batches_move_is_said) {
  const auto folder = fresh_folder();
  write_tokens(folder / "train.bin", 600, 1);
  fs::create_directories(folder / "s");
  const auto start = [&](const std::string& batch) {
    std::ofstream(folder / "s" / "stop") << "";
    return run(folder, mpirun(1, "fsdp-train",
                              split("train.bin --arch gpt2 --vocab-size 256 --decoder-layers 1 "
                                    "--decoder-embed-dim 32 --decoder-attention-heads 2 --tokens-per-sample 32 "
                                    "--max-epoch 4 --lr-scheduler cosine --lr 1e-2 --save-dir s --batch-size " +
                                    batch)));
  };
  BOOST_TEST(start("4").code == 75);
  BOOST_TEST(!start("4").says("the decay"));
  const Outcome moved = start("2");
  BOOST_TEST(
      moved.says("the decay of the learning rate ends at update 36 now; as planned before, it ends at update 19 (the rate "
                 "was 9.73e-03 at update 2 and is "),
      moved.output);
  BOOST_TEST(!start("2").says("the decay"));
}
