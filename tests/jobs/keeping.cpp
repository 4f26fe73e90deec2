// What keeps a good model: the average of the weights, the best checkpoint, early stopping, and a decay that begins at a stable
// checkpoint. Also the terms that only the loss in training has.
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

Outcome train(const fs::path& folder, int np, const std::string& save_dir, int updates, const std::string& more = "") {
  auto words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "32 "
      "--batch-size 2 --total-batch-size 8 --clip-norm 1 --save-dir " +
      save_dir + " --log-file " + save_dir + ".jsonl --max-update " + std::to_string(updates) + " " + more);
  if (more.find("--lr ") == more.npos) words.insert(words.end(), {"--lr", "3e-3"});
  const std::string data = (golden_folder("gpt2-tied") / "train.bin").string();
  words.insert(words.end(), {"--valid", data, data});
  return run(folder, mpirun(np, "fsdp-train", words));
}

Outcome started(const fs::path& folder, const std::string& command) {
  return run(folder, split(std::string(FSDP_BIN) + "/" + command));
}

/// Returns what fsdp-evaluate prints as JSON.
json evaluated(const fs::path& folder, const std::string& words) {
  const Outcome outcome =
      run(folder,
          mpirun(2, "fsdp-evaluate",
                 split(words + " " + (golden_folder("gpt2-tied") / "train.bin").string() + " --tokens-per-sample 32 --json")));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  return json::parse(outcome.output.substr(outcome.output.find('{')), nullptr, false);
}

bool is_there(const fs::path& path) { return fs::exists(path); }

}  // namespace

BOOST_AUTO_TEST_CASE(the_average_is_resumed_to_the_bit_on_any_number_of_ranks) {
  const auto folder = fresh_folder();
  const std::string average = "--ema-decay 0.8 --invariant ";
  const Outcome whole = train(folder, 1, "whole", 6, average);
  BOOST_TEST_REQUIRE(whole.code == 0, whole.output);
  BOOST_TEST(train(folder, 2, "parts", 3, average + "--save-interval-updates 3").code == 0);
  const Outcome last = train(folder, 4, "parts", 6, average + "--validate-interval-updates 5 --use-ema");
  BOOST_TEST(last.code == 0, last.output);
  for (const char* name : {"whole", "parts"}) {
    const Outcome made = started(folder, std::string("fsdp-consolidate ") + name + " " + name + ".h5 --use-ema --verify");
    BOOST_TEST(made.code == 0, made.output);
  }
  const Outcome same = started(folder, "fsdp-inspect whole.h5 parts.h5");
  BOOST_TEST(same.says("are the same, bit for bit"), same.output);
  BOOST_TEST(started(folder, "fsdp-inspect whole parts").code == 0);  // validating with the average has changed no weights

  const double of_average = evaluated(folder, "whole --use-ema")["loss"], of_weights = evaluated(folder, "whole")["loss"];
  BOOST_TEST(of_average > of_weights);  // the average lags behind
  BOOST_TEST(evaluated(folder, "whole.h5")["loss"].get<double>() == of_average);
  const auto valid = metrics(folder / "parts.jsonl", "valid");
  BOOST_TEST_REQUIRE(valid.size() == 3u);
  BOOST_TEST(std::abs(valid.back()["loss"].get<double>() - of_average) < 1e-6);

  const Outcome none = started(folder, "fsdp-evaluate whole.h5 x --use-ema");
  BOOST_TEST(none.code == 2);
  BOOST_TEST(none.says("has no average of the weights"), none.output);
}

BOOST_AUTO_TEST_CASE(an_average_needs_a_beginning) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 2, "saves", 3).code == 0);
  const Outcome refused = train(folder, 2, "saves", 5, "--ema-decay 0.9");
  BOOST_TEST(refused.code == 2, refused.output);
  BOOST_TEST(refused.says("has no average of the weights for --ema-decay"), refused.output);
  BOOST_TEST(refused.says("--ema-start-update 3"), refused.output);
  BOOST_TEST(refused.times_said("has no average") == 1u, refused.output);
  const Outcome evaluated = started(folder, "fsdp-evaluate saves x --use-ema");
  BOOST_TEST(evaluated.code == 2);
  BOOST_TEST(evaluated.says("has no average of the weights (its run kept none); leave out --use-ema"), evaluated.output);
  BOOST_TEST(train(folder, 2, "saves", 5, "--ema-decay 0.9 --ema-start-update 3").code == 0);
  const Outcome left_out = train(folder, 2, "saves", 6);
  BOOST_TEST(left_out.code == 0);
  BOOST_TEST(left_out.says("the checkpoint's average of the weights is left out"), left_out.output);
  for (const char* words : {"--use-ema", "--ema-start-update 3", "--ema-decay 0.9 --use-ema --bf16 --master-dtype bf16"})
    BOOST_TEST(train(folder, 1, "other", 6, words).code == 2, words);
}

// A high learning rate spoils the model, so that the validations after it are worse.
BOOST_AUTO_TEST_CASE(the_best_step_stays_and_a_run_that_gets_worse_stops) {
  const auto folder = fresh_folder();
  const std::string keep = "--validate-interval-updates 2 --keep-best loss --keep-last 1 --early-stopping 3 ";
  const Outcome good = train(folder, 2, "saves", 6, keep);
  BOOST_TEST_REQUIRE(good.code == 0, good.output);
  BOOST_TEST(fs::read_symlink(folder / "saves/best") == "step-00000006");
  BOOST_TEST(!is_there(folder / "saves/step-00000004"));
  const Outcome worse = train(folder, 2, "saves", 100, keep + "--lr 1 --save-interval-updates 1");
  BOOST_TEST(worse.code == 0, worse.output);
  BOOST_TEST(worse.says("stopped early: 3 validations had no smaller loss than"), worse.output);
  BOOST_TEST(fs::read_symlink(folder / "saves/best") == "step-00000006");
  BOOST_TEST(is_there(folder / "saves/step-00000006"));
  BOOST_TEST(is_there(folder / "saves/step-00000012"));
  BOOST_TEST(!is_there(folder / "saves/step-00000011"));
  const Outcome again = train(folder, 4, "saves", 100, keep + "--lr 1");
  BOOST_TEST(again.code == 0, again.output);
  BOOST_TEST(again.says("validations have stopped the run"), again.output);

  const Outcome shown = started(folder, "fsdp-inspect saves/best --json");
  const json best = json::parse(shown.output, nullptr, false);
  BOOST_TEST(best["update"] == 6);
  BOOST_TEST(best["validation"]["update"] == 6);
  BOOST_TEST(best["validation"]["loss"].get<double>() == metrics(folder / "saves.jsonl", "valid")[2]["loss"].get<double>());
  BOOST_TEST(started(folder, "fsdp-inspect saves/best").says("validation loss"));

  const Outcome later = train(folder, 2, "saves", 8, "--restore best");
  BOOST_TEST(later.code == 2);
  BOOST_TEST(later.says("choose another --save-dir with --restore saves/best"), later.output);
  const Outcome branch = train(folder, 2, "branch", 7, "--restore saves/best");
  BOOST_TEST(branch.code == 0, branch.output);
  BOOST_TEST(branch.says("restored step 6"), branch.output);
  const Outcome kept = train(folder, 2, "branch", 8, keep);
  BOOST_TEST(kept.code == 0, kept.output);
  BOOST_TEST(!kept.says("does not name the best step"), kept.output);
  BOOST_TEST(train(folder, 2, "nowhere", 8, "--restore best").says("--restore best"));
  for (const char* words :
       {"--keep-best loss", "--early-stopping 2", "--keep-best loss --validate-interval-updates 2 --no-save"})
    BOOST_TEST(train(folder, 1, "other", 6, words).code == 2, words);
}

BOOST_AUTO_TEST_CASE(a_stop_does_not_change_when_a_run_stops_early) {
  const auto folder = fresh_folder();
  const std::string bad = "--lr 1 --validate-interval-updates 1 --early-stopping 4 --save-interval-updates 1 ";
  const Outcome whole = train(folder, 2, "whole", 60, bad);
  BOOST_TEST_REQUIRE(whole.says("stopped early"), whole.output);
  BOOST_TEST(train(folder, 2, "parts", 3, bad).code == 0);
  BOOST_TEST(train(folder, 2, "parts", 60, bad).says("stopped early"));
  BOOST_TEST(metrics(folder / "whole.jsonl", "end").back()["step"] == metrics(folder / "parts.jsonl", "end").back()["step"]);
  BOOST_TEST(started(folder, "fsdp-inspect whole parts").code == 0);
}

BOOST_AUTO_TEST_CASE(a_decay_begins_at_a_stable_step) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 2, "stable", 6, "--warmup-updates 2 --save-interval-updates 3").code == 0);
  const std::string branch = "--warmup-updates 2 --decay-from 3 --decay-updates 3 ";
  const Outcome decayed = train(folder, 2, "stable", 1000, branch);
  BOOST_TEST_REQUIRE(decayed.code == 0, decayed.output);
  BOOST_TEST(train(folder, 2, "once", 6, "--warmup-updates 2 --lr-scheduler wsd --decay-updates 3").code == 0);
  const Outcome same = started(folder, "fsdp-inspect once stable/decay-from-3");
  BOOST_TEST(same.says("are the same, bit for bit"), same.output);
  BOOST_TEST(is_there(folder / "stable/step-00000006"));
  const Outcome again = train(folder, 2, "stable", 1000, branch);
  BOOST_TEST(again.says("nothing to do"), again.output);
  const Outcome missing = train(folder, 2, "stable", 1000, "--decay-from 4 --decay-updates 3");
  BOOST_TEST(missing.code == 2);
  BOOST_TEST(missing.says("stable/step-00000004 does not exist"), missing.output);
  for (const char* words : {"--decay-from 3", "--decay-from 3 --decay-updates 2 --lr-scheduler cosine",
                            "--decay-from 3 --decay-updates 2 --restore none"})
    BOOST_TEST(train(folder, 1, "other", 6, words).code == 2, words);
}

BOOST_AUTO_TEST_CASE(terms_of_the_loss_are_only_in_training) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 2, "plain", 1, "--lr 0").code == 0);
  const auto of = [&](const std::string& name, const char* type) -> double {
    return metrics(folder / (name + ".jsonl"), type).back()["loss"];
  };
  for (const char* words : {"--label-smoothing 0.2", "--z-loss 1e-2", "--neftune-alpha 100"}) {
    const std::string name = split(words).front().substr(2);
    BOOST_TEST(train(folder, 2, name, 1, std::string("--lr 0 ") + words).code == 0);
    BOOST_TEST(std::abs(of(name, "train") - of("plain", "train")) > 1e-4, words);
    BOOST_TEST(of(name, "valid") == of("plain", "valid"), words);
  }
  BOOST_TEST(of("z-loss", "train") > of("plain", "train") + 0.2);  // log(211)^2 / 100
  const json two = metrics(folder / "plain.jsonl", "train").back();
  BOOST_TEST(two["max_loss"].get<double>() > two["loss"].get<double>());
  BOOST_TEST(two["max_loss"].get<double>() < 1.1 * two["loss"].get<double>());
  BOOST_TEST(train(folder, 1, "alone", 1, "--lr 0").code == 0);
  const json one = metrics(folder / "alone.jsonl", "train").back();
  BOOST_TEST(one["max_loss"].get<double>() == one["loss"].get<double>());
}
