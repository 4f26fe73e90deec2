// fsdp-train --rehearse, as users call it: without a launcher.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const std::string tokens = (golden_folder("gpt2-tied") / "train.bin").string();

const std::string model =
    " --arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 96 --decoder-attention-heads 6 --tokens-per-sample "
    "16 "
    "--batch-size 2 --max-update 100 --save-interval-updates 10 --save-dir runs/first ";

Outcome rehearse(const fs::path& folder, const std::string& words, const std::vector<std::string>& before = {}) {
  std::vector<std::string> command = before;
  command.push_back(FSDP_BIN "/fsdp-train");
  for (const std::string& word : split(words + " --rehearse")) command.push_back(word);
  return run(folder, command);
}

/// Nothing but the outputs of run() is left in the folder.
void require_unchanged(const fs::path& folder, std::size_t files = 2) {
  for (const auto& entry : fs::directory_iterator(folder)) BOOST_TEST_MESSAGE(entry.path().string());
  BOOST_TEST(static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {})) == files);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_job_that_would_run) {
  const fs::path folder = fresh_folder();
  const Outcome sound = rehearse(
      folder, tokens + " --valid " + tokens + model +
                  "--nodes 2 --ranks-per-node 1 --gpu h100 --time 1:00:00 --keep-last 2 --validate-interval-updates 10");
  BOOST_TEST_CONTEXT(sound.output) {
    BOOST_TEST(sound.code == 0);
    BOOST_TEST(sound.says("shard groups of 2 ranks, 1 of them"));
    BOOST_TEST(sound.says("predicted, not measured"));
    BOOST_TEST(sound.says("4 files,"));
    BOOST_TEST(sound.says("3 updates, a validation, a save, and 2 more updates after a resumption"));
    BOOST_TEST(sound.says("width 64 (of 96), heads 4 (of 6)"));
    BOOST_TEST(sound.says("nothing would fail"));
  }
  require_unchanged(folder);
}

BOOST_AUTO_TEST_CASE(all_that_would_fail_is_found) {
  const fs::path folder = fresh_folder();
  const Outcome outcome =
      rehearse(folder, "none.bin --valid none.txt --tokenizer nowhere --total-batch-size 510 --stop-before 10min --time 5" +
                           model + "--nodes 64 --ranks-per-node 8");
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    for (const char* text :
         {"--total-batch-size 510 is not a multiple of", "data 'none.bin' does not exist", "data 'none.txt' does not exist",
          "there is no tokenizer 'nowhere'", "--stop-before 10:00 min leaves no time to train"})
      BOOST_TEST(outcome.times_said(text) == 1u, text);
  }
  require_unchanged(folder);
}

BOOST_AUTO_TEST_CASE(adapters_need_a_base_as_in_the_job) {
  const Outcome outcome = rehearse(fresh_folder(), tokens + model + "--ranks-per-node 2 --lora-rank 2");
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("adapters have no base model"));
  }
}

BOOST_AUTO_TEST_CASE(adapters_are_rehearsed_over_a_base_with_new_weights) {
  const fs::path folder = fresh_folder();
  const std::string base = golden_folder("gpt2-tied").string();
  const Outcome outcome = rehearse(folder, tokens + " --model " + base +
                                               " --lora-rank 2 --max-epoch 3 --tokens-per-sample 8 --no-save "
                                               "--ranks-per-node 3 --rehearse-width 16");
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 0);
    BOOST_TEST(outcome.says("3 stand-ins make a base model"));
    BOOST_TEST(outcome.says("width 16 (of "));
    BOOST_TEST(outcome.says("saves                   none"));
    BOOST_TEST(!outcome.says("could not be counted"));
  }
  require_unchanged(folder);
}

BOOST_AUTO_TEST_CASE(a_batch_that_does_not_divide_is_planned_and_tried_all_the_same) {
  const fs::path folder = fresh_folder();
  const Outcome outcome =
      rehearse(folder, tokens + model + "--nodes 1 --ranks-per-node 2 --total-batch-size 6 --gpu h100 --memory-limit 1MiB");
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("--total-batch-size 6 is not a multiple of --batch-size 2 x 2 ranks"));
    BOOST_TEST(outcome.says("a rank needs"));
    BOOST_TEST(outcome.says("2 more updates after a resumption"));
  }
}

BOOST_AUTO_TEST_CASE(a_job_that_the_gpu_cannot_hold) {
  const Outcome outcome =
      rehearse(fresh_folder(), "none.bin --arch llama-3.1-405b --max-update 9 --ranks-per-node 8 --gpu h100");
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("and has 79.2 GiB"));
  }
}

BOOST_AUTO_TEST_CASE(stand_ins_that_hang_are_ended) {
  const fs::path folder = fresh_folder();
  const fs::path launcher = folder / "mpirun";
  std::ofstream(launcher) << "#!/bin/sh\n[ $1 = --version ] && exit 0\nsleep 100 &\necho $! >" << (folder / "pid").string()
                          << "\necho it hangs >&2\nwait\n";
  ::chmod(launcher.c_str(), 0755);
  fs::create_symlink("mpirun", folder / "mpiexec");
  const Outcome outcome = rehearse(folder, tokens + model + "--nodes 1 --ranks-per-node 2 --rehearse-limit 1s",
                                   {"env", "PATH=" + folder.string() + ":" + std::getenv("PATH")});
  pid_t left = 0;
  std::ifstream(folder / "pid") >> left;
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("did not end within 1.0 s (their last words: it hangs)"));
    BOOST_TEST(left > 0);
    BOOST_TEST(::kill(left, 0) != 0);
  }
  require_unchanged(folder, 5);
}

BOOST_AUTO_TEST_CASE(wrong_use) {
  const fs::path folder = fresh_folder();
  for (const auto& [words, text] : {std::pair("", "--rehearse needs the shape of the job"),
                                    {"--ranks-per-node 2 --time soon", "--time 'soon' is not accepted"},
                                    {"--ranks-per-node 2 --batchsize 3", "did you mean --batch-size?"},
                                    {"--ranks-per-node 2 --dry-run", "leave one out"}}) {
    const Outcome outcome = rehearse(folder, tokens + model + words);
    BOOST_TEST_CONTEXT(outcome.output) {
      BOOST_TEST(outcome.code == 2);
      BOOST_TEST(outcome.says(text), text);
    }
  }
}
