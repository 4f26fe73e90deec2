// fsdp-train in 16 bits: updates that overflow are skipped, the loss scale is in the checkpoint, and values that are
// not finite at any scale are reported with the place where they first occur.
#include <algorithm>
#include <cmath>
#include <map>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> options(int np, int updates, const std::string& save_dir, const std::string& more) {
  std::vector<std::string> words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 3 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "32 "
      "--total-batch-size 12 --batch-size " +
      std::to_string(12 / np) + " --max-update " + std::to_string(updates) + " --save-dir " + save_dir + " --log-file " +
      save_dir + ".jsonl " + more);
  if (more.find("--lr ") == std::string::npos)
    for (const std::string& word : split("--lr 3e-3 --warmup-updates 5 --clip-norm 1")) words.push_back(word);
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  return words;
}

std::vector<json> train(const fs::path& folder, int np, int updates, const std::string& save_dir, const std::string& more) {
  const Outcome outcome = run(folder, mpirun(np, "fsdp-train", options(np, updates, save_dir, more)));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return metrics(folder / (save_dir + ".jsonl"), "train");
}

std::vector<double> losses(const std::vector<json>& lines) {
  std::vector<double> values;
  for (const json& line : lines) values.push_back(line["loss"]);
  return values;
}

/// The losses of a run in this precision, which the first case that needs it starts.
const std::vector<double>& losses_of(const std::string& precision, int np, const fs::path& folder) {
  static std::map<std::string, std::vector<double>> known;
  const std::string name = precision + "-" + std::to_string(np);
  if (!known.contains(name)) known[name] = losses(train(folder, np, 20, name, precision == "fp32" ? "" : "--" + precision));
  return known[name];
}

void follows_fp32(const std::string& precision, double bound) {
  const auto folder = fresh_folder();
  const std::vector<double>& fp32 = losses_of("fp32", 2, folder);
  for (const int np : {1, 2, 3, 4}) {
    const std::vector<double>& low = losses_of(precision, np, folder);
    double apart = 0;
    for (std::size_t u = 0; u < fp32.size(); ++u) apart = std::max(apart, std::abs(low[u] - fp32[u]));
    BOOST_TEST_MESSAGE(np << " ranks: largest difference of a loss " << apart);
    BOOST_TEST(apart < bound);
  }
}

void strategy_and_thread_change_no_bit(const std::string& precision) {
  const auto folder = fresh_folder();
  for (const int np : {1, 2, 3, 4}) {
    const std::string more = "--sharding-strategy none --comm-thread --param-dtype " + precision;
    BOOST_TEST((losses_of(precision, np, folder) == losses(train(folder, np, 20, "none-" + std::to_string(np), more))));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(bf16_follows_fp32_at_any_number_of_ranks) { follows_fp32("bf16", 0.005); }
BOOST_AUTO_TEST_CASE(fp16_follows_fp32_at_any_number_of_ranks) { follows_fp32("fp16", 0.002); }
BOOST_AUTO_TEST_CASE(strategy_and_thread_change_no_bit_in_bf16) { strategy_and_thread_change_no_bit("bf16"); }
BOOST_AUTO_TEST_CASE(strategy_and_thread_change_no_bit_in_fp16) { strategy_and_thread_change_no_bit("fp16"); }

// Validation computes in the precision of training; fsdp-evaluate computes in fp32 by default. Both print the
// precision.
BOOST_AUTO_TEST_CASE(evaluation_names_its_precision_and_can_have_that_of_training) {
  const auto folder = fresh_folder();
  setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  const std::string valid = (golden_folder("gpt2-tied") / "train.bin").string();
  const auto words = [&](const std::string& saves) {
    return options(2, 6, saves, "--bf16 --validate-interval-updates 1 --valid " + valid);
  };
  const Outcome first = run(folder, mpirun(2, "fsdp-train", words("saves")));
  BOOST_TEST_REQUIRE(first.code == 0, first.output);
  // The first run on a machine measures the peak rate of the cores.
  BOOST_TEST(first.times_said("MFU refers to ") == 1u, first.output);
  const Outcome second = run(folder, mpirun(2, "fsdp-train", words("again")));
  BOOST_TEST(!second.says("MFU refers to "), second.output);
  BOOST_TEST(second.says("  mfu "), second.output);
  // A stored peak that is too low, because other work was running, is deleted once a run exceeds it.
  const fs::path note = fs::directory_iterator(folder / "cache/fsdp")->path();
  std::ofstream(note) << R"({"flops_per_core": {"bf16": 1000}})";
  const Outcome third = run(folder, mpirun(2, "fsdp-train", words("third")));
  BOOST_TEST(third.code == 0);
  BOOST_TEST(third.times_said("warning: the MFU is left out: the stored rate of the cores is lower") == 1u, third.output);
  BOOST_TEST((!third.says("  mfu ") && !fs::exists(note)), third.output);
  unsetenv("XDG_CACHE_HOME");
  // The rate of the whole run counts the time of updates, and not that of validations.
  const auto lines = metrics(folder / "saves.jsonl", "train");
  double ms = 0, waited_ms = 0;
  for (const json& line : lines) ms += line["ms"].get<double>(), waited_ms += line["data_wait_ms"].get<double>();
  const json end = metrics(folder / "saves.jsonl", "end").at(0);
  const double seconds = end["tokens"].get<double>() / end["wps"].get<double>();
  BOOST_TEST((seconds > 0.999e-3 * ms && seconds < 1.001e-3 * (ms + waited_ms)), seconds << " s for " << ms << " ms");

  const double validated = metrics(folder / "saves.jsonl", "valid").back()["loss"];
  for (const int np : {1, 3}) {
    const auto evaluate = [&](const std::string& more) {
      return run(folder, mpirun(np, "fsdp-evaluate", split("saves " + valid + " --tokens-per-sample 32 --json " + more)));
    };
    const Outcome same = evaluate("--bf16"), fp32 = evaluate("");
    BOOST_TEST_REQUIRE(same.code == 0, same.output);
    BOOST_TEST(!same.says("was trained in"), same.output);
    const json result = json::parse(same.output.substr(same.output.find('{')));
    BOOST_TEST(result["precision"] == "bf16");
    BOOST_TEST(std::abs(result["loss"].get<double>() - validated) < 1e-6);
    BOOST_TEST(fp32.times_said("was trained in bf16, and is evaluated in fp32; --precision bf16 gives the same losses as "
                               "validation in training") == 1u,
               fp32.output);
    const json other = json::parse(fp32.output.substr(fp32.output.find('{')));
    BOOST_TEST(other["precision"] == "fp32");
    BOOST_TEST(other["loss"].get<double>() != validated);
  }
}

BOOST_AUTO_TEST_CASE(overflows_are_skipped_and_survived) {
  const auto folder = fresh_folder();
  const std::string more = "--fp16 --fp16-init-scale 1e9 --fp16-scale-window 8";
  const auto whole = train(folder, 3, 25, "whole", more);
  const auto skipped = metrics(folder / "whole.jsonl", "skip");
  BOOST_TEST_MESSAGE(skipped.size() << " updates skipped");
  BOOST_TEST_REQUIRE(skipped.size() >= 3u);
  BOOST_TEST(skipped[0]["loss_scale"] == 1e9);
  BOOST_TEST(skipped[0]["next_loss_scale"] == 5e8);
  BOOST_TEST(skipped[0]["step"] == 1);
  BOOST_TEST_REQUIRE(whole.size() == 25u);
  for (std::size_t u = 0; u < whole.size(); ++u) BOOST_TEST(whole[u]["step"] == u + 1);
  BOOST_TEST(whole[0]["loss_scale"].get<double>() < 1e9);
  BOOST_TEST(whole.back()["loss"].get<double>() < whole.front()["loss"].get<double>() - 0.3);
  // The checkpoint contains the loss scale and its state.
  train(folder, 3, 7, "parts", more);
  const auto parts = train(folder, 3, 25, "parts", more);
  BOOST_TEST(losses(parts) == losses(whole), boost::test_tools::per_element());
  for (std::size_t u = 0; u < whole.size(); ++u) BOOST_TEST(parts[u]["loss_scale"] == whole[u]["loss_scale"]);
}

BOOST_AUTO_TEST_CASE(what_never_recovers_is_told) {
  const auto folder = fresh_folder();
  const Outcome outcome =
      run(folder, mpirun(2, "fsdp-train", options(2, 5, "saves", "--fp16 --fp16-init-scale 1e12 --min-loss-scale 1e11")));
  BOOST_TEST(outcome.code == 1, outcome.output);
  BOOST_TEST(outcome.says("the scale is not lowered further"), outcome.output);
  BOOST_TEST(outcome.says("update 1 is not finite"), outcome.output);
  BOOST_TEST(outcome.says("first in the gradient of transformer."), outcome.output);
  BOOST_TEST(outcome.says(", unit "), outcome.output);
  BOOST_TEST(outcome.says(", on rank "), outcome.output);
  BOOST_TEST(outcome.says("or use --bf16"), outcome.output);
  BOOST_TEST(outcome.times_said("fsdp-train: ") == 1u, outcome.output);
  BOOST_TEST(!fs::exists(folder / "saves" / "step-00000001"));
}

BOOST_AUTO_TEST_CASE(a_gradient_that_is_not_finite_never_reaches_the_weights) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const auto folder = fresh_folder() / precision;
    fs::create_directories(folder);
    const Outcome outcome = run(folder, mpirun(3, "fsdp-train",
                                               options(3, 9, "saves",
                                                       "--optimizer sgd --lr 1e30 --save-interval-updates 1 "
                                                       "--precision " +
                                                           precision)));
    BOOST_TEST(outcome.code == 1, outcome.output);
    BOOST_TEST(outcome.says(" is not finite"), outcome.output);
    // The weights after the first update are finite, but their activations are not.
    BOOST_TEST(outcome.says("update 2 is not finite"), outcome.output);
    BOOST_TEST((outcome.says("first in the output of the embedding on rank ") || outcome.says(" in the forward pass on rank ")),
               outcome.output);
    BOOST_TEST(fs::exists(folder / "saves" / "step-00000001" / "complete.json"));
  }
}

BOOST_AUTO_TEST_CASE(what_travels_in_16_bits_is_as_close_and_the_same_bits) {
  const auto folder = fresh_folder();
  const auto fp32 = losses(train(folder, 3, 20, "fp32", ""));
  for (const int np : {2, 3, 4})
    for (const std::string type : {"bf16", "fp16"}) {
      const std::string name = type + "-" + std::to_string(np), more = "--reduce-dtype " + type;
      const auto low = losses(train(folder, np, 20, name, more));
      double apart = 0;
      for (std::size_t u = 0; u < fp32.size(); ++u) apart = std::max(apart, std::abs(low[u] - fp32[u]));
      BOOST_TEST_MESSAGE(name << ": largest difference of a loss " << apart);
      BOOST_TEST(apart < (type == "bf16" ? 0.005 : 0.002));
      BOOST_TEST(apart > 1e-7);
      BOOST_TEST((low == losses(train(folder, np, 20, name + "-none", "--sharding-strategy none --comm mpi " + more))));
      if (np == 4)
        BOOST_TEST((low == losses(train(folder, np, 20, name + "-hybrid",
                                        "--sharding-strategy hybrid --shard-group-size 2 --comm-thread " + more))));
    }
}

BOOST_AUTO_TEST_CASE(rotary_tables_are_rounded_if_asked) {
  const auto folder = fresh_folder();
  const auto losses_with = [&](const std::string& arch, const std::string& name, const std::string& type) {
    auto words = split("--arch " + arch +
                       " --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 64 --decoder-ffn-embed-dim 96 "
                       "--decoder-attention-heads 4 --tokens-per-sample 32 --batch-size 3 --max-update 5 --buffer-dtype " +
                       type + " --save-dir " + name + " --log-file " + name + ".jsonl");
    if (arch != "gpt2") words.insert(words.end(), {"--decoder-kv-heads", "2"});
    words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
    const Outcome outcome = run(folder, mpirun(2, "fsdp-train", words));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return losses(metrics(folder / (name + ".jsonl"), "train"));
  };
  const auto fp32 = losses_with("llama-3.2-1b", "fp32", "fp32"), bf16 = losses_with("llama-3.2-1b", "bf16", "bf16");
  for (std::size_t u = 0; u < fp32.size(); ++u) {
    BOOST_TEST(fp32[u] != bf16[u]);
    BOOST_TEST(std::abs(fp32[u] - bf16[u]) < 1e-3);
  }
  BOOST_TEST((losses_with("gpt2", "gpt2", "fp32") == losses_with("gpt2", "gpt2-bf16", "bf16")));  // GPT-2 has no buffers
}

BOOST_AUTO_TEST_CASE(machines_that_do_not_multiply_16_bits) {
  const auto folder = fresh_folder();
  const auto start = [&](const std::string& isa, const std::string& more) {
    auto command = mpirun(2, "fsdp-train", options(2, 2, "saves-" + isa + more.substr(more.size() - 4), more));
    command.insert(command.begin(), {"env", "ONEDNN_MAX_CPU_ISA=" + isa});
    return run(folder, command);
  };
  const std::string warning = "warning: bf16 matrix products convert their operands to fp32 here";
  const Outcome version = run(folder, {std::string(FSDP_BIN) + "/fsdp-train", "--version"});
  BOOST_TEST(version.says("(bf16 by "), version.output);
  if (version.says("oneDNN")) {
    const Outcome without = start("AVX2", "--bf16");
    BOOST_TEST(without.code == 0, without.output);
    BOOST_TEST(without.says(warning), without.output);
    BOOST_TEST(without.says("(bf16 by conversion to fp32, fp16 by conversion to fp32)"), without.output);
    BOOST_TEST(!start("AVX2", "--precision fp32").says(warning));
  }
  BOOST_TEST(start("DEFAULT", "--bf16").says(warning) == version.says("(bf16 by conversion"));
  BOOST_TEST(start("DEFAULT", "--fp16").says("warning: fp16 matrix products convert"));
}

BOOST_AUTO_TEST_CASE(what_is_kept_in_bf16_goes_on_with_the_same_bits) {
  const auto folder = fresh_folder();
  const std::string bf16 = "--bf16 --optimizer-state-dtype bf16 --batch-size 2 ",
                    narrow = bf16 + "--master-dtype bf16 --grad-dtype bf16";
  const auto options_with = [&](int np, int updates, const std::string& saves, const std::string& more) {
    auto words = options(np, updates, saves, more);
    words.erase(std::find(words.begin(), words.end(), "--batch-size"),
                std::find(words.begin(), words.end(), "--batch-size") + 2);
    return words;
  };
  const auto start = [&](int np, int updates, const std::string& saves, const std::string& more) {
    const Outcome outcome = run(folder, mpirun(np, "fsdp-train", options_with(np, updates, saves, more)));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return losses(metrics(folder / (saves + ".jsonl"), "train"));
  };
  const auto wide = start(3, 12, "wide", bf16), whole = start(3, 12, "whole", narrow);
  double apart = 0;
  for (std::size_t u = 0; u < wide.size(); ++u) apart = std::max(apart, std::abs(whole[u] - wide[u]));
  BOOST_TEST_MESSAGE("largest difference of a loss " << apart);
  BOOST_TEST(apart > 0);
  BOOST_TEST(apart < 0.02);
  start(3, 5, "parts", narrow);
  BOOST_TEST((start(3, 12, "parts", narrow + " --comm-thread") == whole));
  // Another number of ranks sums in another order, but resumes from the same weights. So does a run that changes to
  // fp32 master weights and back.
  start(3, 5, "moved", narrow);
  const auto moved = start(2, 8, "moved", narrow);
  start(2, 10, "moved", bf16);
  const auto back = start(2, 12, "moved", narrow);
  for (std::size_t u = 0; u < moved.size(); ++u) BOOST_TEST(std::abs(moved[u] - whole[u]) < 0.02);
  BOOST_TEST_REQUIRE(back.size() == 12u);
  for (std::size_t u = 0; u < back.size(); ++u) BOOST_TEST(std::abs(back[u] - whole[u]) < 0.02);
}

BOOST_AUTO_TEST_CASE(contradictions) {
  const auto folder = fresh_folder();
  const std::vector<std::pair<std::string, std::string>> all = {
      {"--bf16 --fp16", "--fp16 contradicts --bf16"},
      {"--precision fp32 --bf16", "--bf16 contradicts --precision fp32"},
      {"--fp16 --param-dtype bf16", "--fp16 contradicts --param-dtype bf16"},
      {"--bf16 --fp16-init-scale 8", "a loss scale changes nothing"},
      {"--fp16 --fp16-init-scale 1e-5", "is not above --min-loss-scale"},
      {"--fp16 --fp16-init-scale -1", "--fp16-init-scale"},
      {"--fp16 --fp16-scale-window 0", "--fp16-scale-window"},
      {"--precision fp8", "--precision"},
      {"--master-dtype bf16", "--master-dtype bf16 needs --precision bf16"},
      {"--fp16 --master-dtype bf16", "--master-dtype bf16 needs --precision bf16"},
      {"--grad-dtype fp16", "fp32, bf16"},
      {"--cpu-offload", "--cpu-offload needs --bf16 or --fp16"},
      {"--bf16 --cpu-offload --offload-params none", "--cpu-offload contradicts --offload-params none"},
      {"--offload-params cpu --offload-optimizer none", "--offload-params cpu contradicts --offload-optimizer none"},
      {"--bf16 --cpu-offload --offload-optimizer none", "--cpu-offload contradicts --offload-optimizer none"},
      {"--offload-params disk", "none, cpu"}};
  for (const auto& [words, text] : all) {
    const Outcome outcome = run(folder, mpirun(2, "fsdp-train", options(2, 5, "saves", words)));
    BOOST_TEST(outcome.code == 2, words << ": " << outcome.output);
    BOOST_TEST(outcome.says(text), words << ": " << outcome.output);
  }
}
