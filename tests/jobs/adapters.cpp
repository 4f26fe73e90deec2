// Runs that train adapters (LoRA): they resume bit for bit and at any number of ranks, hold the planned memory, and refuse
// other base models. Their adapters become PEFT's folders and merged models, which give the same losses.
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "families.hpp"
#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const std::string tokens = (golden_folder("llama-gqa") / "train.bin").string();
const std::string base = golden_folder("llama-gqa").string();
const std::string lora = " --lora-rank 3 --lora-alpha 5 --lora-targets all-linear";
const std::string with_tables = lora + ",embed_tokens,lm_head";  // of an untied Llama

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
Outcome program(const fs::path& folder, const std::string& words) {
  return run(folder, split(std::string(FSDP_BIN) + "/" + words));
}
/// The adapters of the latest step, as the bytes of PEFT's file.
std::string adapters_of(const fs::path& folder, const std::string& save_dir) {
  expect_done(program(folder, "fsdp-consolidate " + save_dir + " " + save_dir + "-peft --adapter --verify"));
  std::ifstream file(folder / (save_dir + "-peft") / "adapter_model.safetensors");
  return {std::istreambuf_iterator<char>(file), {}};
}
double loss_of(const fs::path& folder, const std::string& words) {
  const Outcome outcome = run(folder, mpirun(2, "fsdp-evaluate", split(words + " " + tokens + " --json")));
  expect_done(outcome);
  return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"];
}

}  // namespace

BOOST_AUTO_TEST_CASE(they_resume_bit_for_bit) {
  const auto folder = fresh_folder();
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string all = "--model " + base + with_tables + " --lora-dropout 0.2 --precision " + precision,
                      straight = "straight-" + precision, stopped = "stopped-" + precision;
    const Outcome whole = train(folder, 2, straight, 6, all);
    expect_done(whole);
    expect_done(train(folder, 2, stopped, 3, all));
    const Outcome rest = train(folder, 2, stopped, 6, all);
    expect_done(rest);
    BOOST_TEST(rest.says("restored step 3"), rest.output);
    // A CPU without bf16 instructions has a warning in both runs with bf16.
    BOOST_TEST(rest.times_said("warning") == (precision == "fp32" ? 0u : whole.times_said("warning")), rest.output);
    BOOST_TEST((adapters_of(folder, straight) == adapters_of(folder, stopped)));
    const json start = metrics(folder / (straight + ".jsonl"), "start").front(),
               end = metrics(folder / (straight + ".jsonl"), "end").front();
    BOOST_TEST(start["plan_peak_bytes"] == end["mem_peak_bytes"]);
  }
  // Other numbers of ranks and strategies differ only by the order of sums.
  const std::string all = "--model " + base + with_tables + " --lora-dropout 0.2";
  expect_done(train(folder, 3, "moved", 2, all + " --sharding-strategy grad-op"));
  expect_done(train(folder, 1, "moved", 4, all + " --sharding-strategy none"));
  expect_done(train(folder, 2, "moved", 6, all + " --checkpoint-activations"));
  const auto expected = metrics(folder / "straight-fp32.jsonl", "train"), found = metrics(folder / "moved.jsonl", "train");
  BOOST_TEST_REQUIRE(found.size() == 6u);
  for (std::size_t i = 0; i < found.size(); ++i)
    BOOST_TEST(std::abs(found[i]["loss"].get<double>() - expected[i]["loss"].get<double>()) < 1e-5);
}

BOOST_AUTO_TEST_CASE(a_checkpoint_has_only_the_adapters) {
  const auto folder = fresh_folder();
  const Outcome outcome = train(folder, 2, "saves", 2, "--model " + base + lora);
  expect_done(outcome);
  BOOST_TEST(outcome.says(" %, trained, the others frozen),"), outcome.output);
  BOOST_TEST(outcome.says("adapters: rank 3, scale 1.667, 7 projections of a block;"), outcome.output);
  BOOST_TEST(outcome.says("base model " + base + " with checksum "), outcome.output);
  const Outcome shown = program(folder, "fsdp-inspect saves --json");
  expect_done(shown);
  const json report = json::parse(shown.output);
  BOOST_TEST(report["config"]["lora"]["r"] == 3);
  for (const json& tensor : report["tensors"])
    BOOST_TEST(tensor["name"].get<std::string>().find(".lora_") != std::string::npos);
  BOOST_TEST(program(folder, "fsdp-inspect saves").says("adapters of rank 3 for the base model " + base));
  expect_refused(program(folder, "fsdp-consolidate saves model"), "give --adapter for a folder of PEFT, or --merge");
}

BOOST_AUTO_TEST_CASE(they_become_peft_folders_and_models) {
  const auto folder = fresh_folder();
  for (const std::string family : {"llama-gqa", "gpt2-tied"}) {
    const std::string model = golden_folder(family).string(), saves = "saves-" + family, merged = "merged-" + family;
    expect_done(train(folder, 2, saves, 5, "--model " + model + (family == "llama-gqa" ? with_tables : lora)));
    adapters_of(folder, saves);
    expect_done(program(folder, "fsdp-consolidate " + saves + " " + merged + " --merge --format safetensors --verify"));
    const double expected = loss_of(folder, merged), before = loss_of(folder, model);
    BOOST_TEST(expected < before - 0.01);
    for (const std::string& words : {saves, model + " --adapter " + saves, model + " --adapter " + saves + "-peft"})
      BOOST_TEST(loss_of(folder, words) == expected, boost::test_tools::tolerance(1e-6));
    // The training loss of the unmerged adapters on the same first batch is that of the merged model.
    expect_done(train(folder, 2, "again-" + family, 1, "--model " + model + " --adapter " + saves + "-peft"));
    expect_done(train(folder, 2, "whole-" + family, 1, "--model " + merged));
    const auto first = [&](const std::string& name) {
      return metrics(folder / (name + "-" + family + ".jsonl"), "train").front()["loss"].get<double>();
    };
    BOOST_TEST(first("again") == first("whole"), boost::test_tools::tolerance(1e-6));
    // A run may train new adapters over a model with merged ones.
    expect_done(train(folder, 2, "more-" + family, 2, "--finetune-from " + saves + " --lora-rank 2"));
    expect_done(train(folder, 1, "more-" + family, 3, ""));
    expect_done(run(folder, mpirun(2, "fsdp-generate", split(model + " --adapter " + saves + " --tokenizer bytes"))));
  }
}

BOOST_AUTO_TEST_CASE(mistakes_are_refused) {
  const auto folder = fresh_folder();
  const std::string model = "--model " + base;
  const auto refused = [&](const std::string& words, const std::string& text) {
    expect_refused(train(folder, 2, "saves", 4, words), text);
  };
  refused(model + " --lora-rank 0", "--lora-rank");
  refused(model + " --lora-rank 2 --lora-targets query",
          "--lora-targets 'query' matches no module (those that can have adapters are");
  refused(model + " --lora-alpha 2", "--lora-alpha changes nothing (it goes with --lora-rank)");
  refused(model + " --lora-rank 2 --freeze *norm*", "do not go with adapters");
  refused("--arch gpt2 --lora-rank 2", "adapters have no base model");
  refused(model + " --adapter absent", "absent does not exist");
  refused(model + " --use-peft", "give --lora-rank R");
  refused(model + " --modules-to-save lm_head", "--modules-to-save changes nothing (it goes with --lora-rank)");
  refused(model + " --lora-rank 2 --modules-to-save heads", "--modules-to-save 'heads' matches no module");
  refused(model + " --lora-rank 2 --lora-layers 1,x", "--lora-layers has 'x'");
  refused(model + " --lora-rank 2 --lora-layers 99", "--lora-layers has 99 (the model has layers 0 to ");
  refused(model + " --lora-rank 2 --lora-rank-pattern up_proj=3",
          "--lora-rank-pattern 'up_proj' matches no module with an adapter");
  refused(model + " --lora-rank 2 --lora-targets up_proj --base-dtype nf4 --modules-to-save q_proj", "which is kept quantized");
  refused(model + " --add-tokens a,b", "--add-tokens has no tokenizer to add to");
  refused(model + " --adapter absent --pad-vocab-to 64", "--adapter does not go with --add-tokens");
  expect_done(train(folder, 1, "saves", 2, model + " --lora-rank 2"));
  adapters_of(folder, "saves");
  refused(model, "no adapters requested (--lora-rank), adapters in the checkpoint");
  refused(model + " --lora-rank 3", "holds another model");
  const Outcome large = train(folder, 1, "large", 1, model + " --lora-rank 2000");
  expect_done(large);
  BOOST_TEST(large.times_said("--lora-rank 2000 is more than the ") == 1u, large.output);
  // A base model with one other element is another model. A copy of the base model is not.
  fs::copy(base, folder / "copy", fs::copy_options::recursive);
  expect_done(train(folder, 2, "saves", 3, "--model copy --lora-rank 2"));
  {
    std::fstream weights(folder / "copy" / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-1, std::ios::end);
    weights.put('\x3c');
  }
  refused("--model copy --lora-rank 2", "were trained on another base model than Hugging Face folder copy");
  refused("", "were trained on another base model than");  // the last run recorded the copy
  expect_refused(train(folder, 2, "others", 1, "--model copy --adapter saves-peft"), "were trained on another base model");
  expect_refused(run(folder, mpirun(2, "fsdp-evaluate", split("copy " + tokens + " --adapter saves"))),
                 "were trained on another base model");
  const std::string other = golden_folder("gpt2-tied").string();
  expect_refused(train(folder, 2, "others", 1, "--model " + other + " --adapter saves-peft"), "has adapters of another model");
  fs::remove_all(folder / "copy");
  refused("", "which does not exist; put that model back, or give its new place (--model)");
  // What this program does not have is refused by name.
  for (const auto& [key, value] : {std::pair("use_dora", "true"), std::pair("lora_bias", "true"), std::pair("bias", "\"all\""),
                                   std::pair("init_lora_weights", "\"pissa\"")}) {
    json config = json::parse(std::ifstream(folder / "saves-peft" / "adapter_config.json"));
    config[key] = json::parse(value);
    std::ofstream(folder / "saves-peft" / "adapter_config.json") << config;
    expect_refused(train(folder, 1, "others", 1, model + " --adapter saves-peft"), std::string("has ") + key);
    config.erase(key);
    std::ofstream(folder / "saves-peft" / "adapter_config.json") << config;
  }
}

// In a tied model, an adapter of the embedding or the head changes only one of them, which no merged model has.
BOOST_AUTO_TEST_CASE(adapters_of_tied_tables_stay_apart) {
  const auto folder = fresh_folder();
  const std::string tied = golden_folder("gpt2-tied").string(), targets = " --lora-rank 2 --lora-targets wte,lm_head,c_attn";
  const Outcome outcome = train(folder, 3, "saves", 3, "--model " + tied + targets + " --lora-dropout 0.1 --lora-layers 0");
  expect_done(outcome);
  BOOST_TEST(outcome.says("adapters: rank 2, scale 4, 1 projection of a block, embedding, head;"), outcome.output);
  adapters_of(folder, "saves");
  BOOST_TEST(loss_of(folder, "saves") == loss_of(folder, tied + " --adapter saves-peft"), boost::test_tools::tolerance(1e-6));
  expect_done(run(folder, mpirun(2, "fsdp-generate", split(tied + " --adapter saves-peft --tokenizer bytes"))));
  const std::string reason = "cannot be merged (the embedding and the head are one table of this model";
  expect_refused(program(folder, "fsdp-consolidate saves merged --merge"), reason);
  expect_refused(train(folder, 2, "others", 1, "--finetune-from saves"), reason);
  expect_refused(train(folder, 2, "others", 1, "--model " + tied + targets + " --modules-to-save wte"),
                 "transformer.wte is in --lora-targets, and in --modules-to-save");
}

BOOST_AUTO_TEST_CASE(gate_and_up_in_one_matrix_have_no_adapters) {
  const auto folder = fresh_folder();
  const json one = family_case("phi3");
  write_formula_model(folder / "phi", one["config"]);
  write_formula_tokens(folder / "train.bin", one["config"]["vocab_size"], 100);
  const std::string words = "train.bin --model phi --tokens-per-sample 8 --max-update 1 --save-dir saves --lora-rank 2";
  const auto job = [&](const std::string& more) { return run(folder, mpirun(1, "fsdp-train", split(words + more))); };
  expect_refused(job(" --lora-targets all-linear"), "use adapters of other projections: qkv_proj, o_proj, down_proj");
  expect_done(job(" --lora-targets *.0.self_attn.qkv_proj,down_proj"));
  adapters_of(folder, "saves");
  const json config = json::parse(std::ifstream(folder / "saves-peft" / "adapter_config.json"));
  BOOST_TEST(config["target_modules"].size() == 1 + one["config"]["num_hidden_layers"].get<std::size_t>());
}

// The memory of a run is that of fsdp-plan. The parameters of a frozen model in bf16 have 2 bytes each, divided by the ranks.
BOOST_AUTO_TEST_CASE(memory_is_that_of_the_plan) {
  const auto folder = fresh_folder();
  const auto planned = [&](const std::string& words) {
    const Outcome outcome = program(folder, "fsdp-plan --bf16 --json --tokens-per-sample 32 --batch-size 3 " + words);
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const json row = json::parse(outcome.output)["strategies"].front();
    BOOST_TEST(row["strategy"] == "full");
    return row["keeping"]["memory"];
  };
  expect_done(train(folder, 2, "saves", 2, "--bf16 --model " + base + with_tables));
  const json small = planned("--ranks-per-node 2 --model " + base + with_tables),
             end = metrics(folder / "saves.jsonl", "end").front();
  BOOST_TEST(small["plan_peak"] == end["mem_peak_bytes"]);
  const json large = planned("--ranks-per-node 8 --arch llama-2-7b --lora-rank 16");
  const double frozen = 2 * 6738415616.0 / 8, adapters = (2 + 4) * 32 * 2 * 16 * 2 * 4096.0 / 8;
  BOOST_TEST(large["parameters"].get<double>() == frozen + adapters, boost::test_tools::tolerance(1e-4));
  BOOST_TEST(large["optimizer_state"].get<double>() == 8 * adapters / 6, boost::test_tools::tolerance(1e-3));
}
