// A quantized base model (QLoRA): training of adapters over it, evaluation, generation and merging.
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const std::string tokens = (golden_folder("llama-gqa") / "train.bin").string();

Outcome train(const fs::path& folder, int np, const std::string& save_dir, int updates, const std::string& more) {
  return run(folder, mpirun(np, "fsdp-train",
                            split(tokens + " --tokens-per-sample 32 --total-batch-size 6 --batch-size " +
                                  std::to_string(6 / np) + " --lr 1e-2 --max-update " + std::to_string(updates) +
                                  " --save-dir " + save_dir + " --log-file " + save_dir + ".jsonl " + more)));
}
void expect_done(const Outcome& outcome) { BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output); }
void expect_refused(const Outcome& outcome, const std::string& text) {
  BOOST_TEST(outcome.code == 2, outcome.output);
  BOOST_TEST(outcome.times_said(text) == 1u, "'" << text << "' is missing in " << outcome.output);
}
std::string adapters_of(const fs::path& folder, const std::string& save_dir) {
  expect_done(run(folder, split(FSDP_BIN "/fsdp-consolidate " + save_dir + " " + save_dir + "-peft --adapter")));
  return read_file(folder / (save_dir + "-peft") / "adapter_model.safetensors");
}
json first_strategy(const fs::path& folder, const std::string& words) {
  const Outcome outcome =
      run(folder, split(FSDP_BIN "/fsdp-plan --bf16 --json --tokens-per-sample 32 --batch-size 3 " + words));
  expect_done(outcome);
  return json::parse(outcome.output)["strategies"].front();
}

}  // namespace

BOOST_AUTO_TEST_CASE(runs_resume_bit_for_bit_with_the_planned_memory) {
  const auto folder = fresh_folder();
  for (const std::string model : {"llama-gqa", "gpt2-tied"})
    for (const std::string type : {"nf4", "int8"}) {
      const std::string targets = model == "llama-gqa" && type == "int8" ? "*_proj,embed_tokens,lm_head" : "all-linear",
                        all = "--model " + golden_folder(model).string() + " --lora-rank 3 --lora-dropout 0.1 --lora-targets " +
                              targets + " --base-dtype " + type + (type == "nf4" ? " --bf16" : ""),
                        straight = model + type, stopped = model + type + "-stopped", moved = model + type + "-moved";
      expect_done(train(folder, 2, straight, 6, all));
      expect_done(train(folder, 2, stopped, 3, all));
      expect_done(train(folder, 2, stopped, 6, all));
      BOOST_TEST((adapters_of(folder, straight) == adapters_of(folder, stopped)));
      const json end = metrics(folder / (straight + ".jsonl"), "end").front();
      BOOST_TEST(metrics(folder / (straight + ".jsonl"), "start").front()["plan_peak_bytes"] == end["mem_peak_bytes"]);
      // The matrices do not depend on the number of ranks, nor on the strategy. Losses of bf16 differ by roundings:
      // up to 3.2e-3 on CPUs that convert bf16 to fp32.
      expect_done(train(folder, 3, moved, 3, all + " --sharding-strategy grad-op"));
      expect_done(train(folder, 1, moved, 6, all));
      const auto expected = metrics(folder / (straight + ".jsonl"), "train"),
                 found = metrics(folder / (moved + ".jsonl"), "train");
      BOOST_TEST_REQUIRE(found.size() == 6u);
      for (std::size_t i = 0; i < found.size(); ++i)
        BOOST_TEST(std::abs(found[i]["loss"].get<double>() - expected[i]["loss"].get<double>()) <
                   (type == "nf4" ? 5e-3 : 1e-5));
    }
}

BOOST_AUTO_TEST_CASE(models_are_evaluated_and_continue_texts) {
  const auto folder = fresh_folder();
  const std::string model = golden_folder("llama-gqa").string();
  const auto loss = [&](int np, const std::string& more) {
    const Outcome outcome = run(folder, mpirun(np, "fsdp-evaluate", split(model + " " + tokens + " --json " + more)));
    expect_done(outcome);
    return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"].get<double>();
  };
  const double whole = loss(1, ""), int8 = loss(1, "--base-dtype int8"), nf4 = loss(1, "--base-dtype nf4");
  BOOST_TEST(loss(3, "--base-dtype int8") == int8);
  BOOST_TEST(loss(2, "--load-in-4bit") == nf4);
  BOOST_TEST(std::abs(int8 - whole) > 0);
  BOOST_TEST(std::abs(int8 - whole) < 0.02);
  BOOST_TEST(std::abs(nf4 - whole) > std::abs(int8 - whole));
  BOOST_TEST(std::abs(nf4 - whole) < 0.2);
  const auto text = [&](int np) {
    const Outcome outcome = run(folder, mpirun(np, "fsdp-generate",
                                               split(model + " --tokenizer bytes --prompt ab --temperature 0 "
                                                             "--max-new-tokens 9 --base-dtype nf4 --bf16")));
    expect_done(outcome);
    return outcome.output;
  };
  BOOST_TEST(text(1) == text(3));
}

// Adapters run over the base of their training, and are merged into its expanded matrices.
BOOST_AUTO_TEST_CASE(adapters_are_used_as_they_were_trained) {
  const auto folder = fresh_folder();
  const auto loss = [&](const std::string& words, const std::string& warning = "") {
    const Outcome outcome =
        run(folder, mpirun(1, "fsdp-evaluate", split(words + " " + tokens + " --tokens-per-sample 32 --json")));
    expect_done(outcome);
    BOOST_TEST(outcome.says("warning") == !warning.empty(), outcome.output);
    BOOST_TEST(outcome.says(warning), outcome.output);
    return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"].get<double>();
  };
  for (const auto& [model, type] : {std::pair("gpt2-tied", std::string("nf4")), std::pair("llama-gqa", std::string("int8"))}) {
    const std::string base = golden_folder(model).string(), of_base = "--model " + base, validates = " --valid " + tokens;
    expect_done(train(folder, 1, type, 3, of_base + " --lora-rank 3 --base-dtype " + type + validates));
    const double trained = metrics(folder / (type + ".jsonl"), "valid").back()["loss"];
    const auto expect_same = [&](double found, double within = 1e-6) { BOOST_TEST(std::abs(found - trained) < within); };
    expect_same(loss(type));
    expect_same(loss(type + " --base-dtype " + type));
    adapters_of(folder, type);
    expect_same(loss(base + " --adapter " + type + "-peft"));
    const std::string merge = FSDP_BIN "/fsdp-consolidate " + type + " merged-" + type;
    const Outcome merged = run(folder, split(merge + " --merge --verify --format safetensors"));
    expect_done(merged);
    BOOST_TEST(merged.says(" expanded from " + type + " with the adapters of "), merged.output);
    expect_same(loss("merged-" + type), 1e-5);
    // A run that continues them begins with the loss of their training.
    const Outcome more =
        train(folder, 2, "more-" + type, 1, of_base + " --adapter " + type + "-peft --eval-on-start" + validates);
    expect_done(more);
    BOOST_TEST(more.says(" in " + type + " with checksum "), more.output);
    BOOST_TEST(!more.says("trained over"), more.output);
    expect_same(metrics(folder / ("more-" + type + ".jsonl"), "valid").front()["loss"]);
    expect_done(train(folder, 2, "more-" + type, 2, of_base + " --adapter " + type + "-peft"));
    const std::string other = type == "nf4" ? "int8" : "nf4",
                      both = "were trained over a base model in " + type + ", but are used over one in " + other;
    BOOST_TEST(std::abs(loss(type + " --base-dtype " + other, both) - trained) > 1e-5);
    const Outcome another = train(folder, 1, "other-" + type, 1, of_base + " --adapter " + type + " --base-dtype " + other);
    expect_done(another);
    BOOST_TEST(another.says(both), another.output);
  }
  expect_done(train(folder, 1, "plain", 1, "--model " + golden_folder("llama-gqa").string() + " --lora-rank 2"));
  loss("plain --base-dtype nf4", "over a base model that is not quantized, but are used over one in nf4");
}

// 4.13 bits for an element of the blocks' matrices: 4, and 8 bits for 64 of them, and 32 bits for 256 times 64.
BOOST_AUTO_TEST_CASE(the_plan_has_a_quarter_of_the_bytes) {
  const auto folder = fresh_folder();
  const std::string lora = "--ranks-per-node 8 --arch llama-2-7b --lora-rank 16";
  const json whole = first_strategy(folder, lora), nf4 = first_strategy(folder, lora + " --base-dtype nf4"),
             int8 = first_strategy(folder, lora + " --base-dtype int8");
  const double matrices = 32 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008) / 8;
  const auto saved = [&](const json& row) {
    return whole["keeping"]["memory"]["parameters"].get<double>() - row["keeping"]["memory"]["parameters"].get<double>();
  };
  BOOST_TEST(saved(nf4) == matrices * (2 - (4 + 8.0 / 64 + 32.0 / 16384) / 8), boost::test_tools::tolerance(1e-4));
  BOOST_TEST(saved(int8) == matrices * (2 - 1), boost::test_tools::tolerance(1e-3));
}

BOOST_AUTO_TEST_CASE(mistakes_are_refused) {
  const auto folder = fresh_folder();
  const std::string model = "--model " + golden_folder("llama-gqa").string();
  const auto refused = [&](const std::string& words, const std::string& text) {
    expect_refused(train(folder, 2, "saves", 4, words), text);
  };
  refused(model + " --base-dtype nf4", "--base-dtype needs --lora-rank or --adapter (quantized matrices cannot be trained");
  refused(model + " --lora-rank 2 --base-dtype fp4", "--base-dtype 'fp4' is not accepted");
  refused(model + " --lora-rank 2 --load-in-4bit --load-in-8bit", "contradict each other");
  refused("--arch gpt2 --lora-rank 2 --base-dtype nf4", "adapters have no base model");
  expect_done(train(folder, 1, "saves", 2, model + " --lora-rank 2 --base-dtype nf4"));
  refused(model + " --lora-rank 2", "no --base-dtype requested, nf4 in the checkpoint");
  refused(model + " --lora-rank 2 --base-dtype int8", "base_dtype: \"int8\" requested, \"nf4\" in the checkpoint");
  // Adapters go on over a base of another type, with a new optimizer.
  expect_done(train(folder, 2, "others", 1, model + " --adapter saves --base-dtype int8"));
}
