// The save folder during and after training: which steps are kept, how damaged steps are handled, and what a new run
// takes from an old one.
#include <algorithm>
#include <set>

#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

std::vector<std::string> options(const std::string& save_dir, int updates, const std::string& more = "") {
  auto words = split(
      "--arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 48 --decoder-attention-heads 4 --tokens-per-sample "
      "32 "
      "--total-batch-size 12 --lr 3e-3 --clip-norm 1 --save-dir " +
      save_dir + " --log-file " + save_dir + ".jsonl --max-update " + std::to_string(updates) + " " + more);
  words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
  return words;
}

Outcome train(const fs::path& folder, int np, const std::string& save_dir, int updates, const std::string& more = "") {
  auto words = options(save_dir, updates, more);
  words.insert(words.end(), {"--batch-size", std::to_string(12 / np)});
  return run(folder, mpirun(np, "fsdp-train", words));
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  return names;
}

/// Flips one bit in the middle of the largest rank file.
void damage(const fs::path& step) {
  fs::path largest;
  for (const auto& entry : fs::directory_iterator(step))
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(largest) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 4));
}

std::vector<double> losses(const fs::path& folder, const std::string& save_dir) {
  std::vector<double> values;
  for (const json& line : metrics(folder / (save_dir + ".jsonl"), "train")) values.push_back(line["loss"]);
  return values;
}

using Names = std::set<std::string>;

}  // namespace

BOOST_AUTO_TEST_CASE(old_steps_go_and_milestones_stay) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 2, "saves", 9, "--save-interval-updates 1 --keep-last 2 --keep-every 4").code == 0);
  BOOST_CHECK((names_in(folder / "saves") == Names{"step-00000004", "step-00000008", "step-00000009"}));
  BOOST_TEST(train(folder, 3, "saves", 10, "--keep-last 1").code == 0);
  BOOST_CHECK((names_in(folder / "saves") == Names{"step-00000010"}));
  const Outcome alone = train(folder, 2, "saves", 11, "--keep-every 2");
  BOOST_TEST(alone.code == 2);
  BOOST_TEST(alone.says("give --keep-last, too"), alone.output);
}

BOOST_AUTO_TEST_CASE(saves_by_the_clock) {
  const auto folder = fresh_folder();
  const Outcome outcome =
      run(folder, mpirun(2, "fsdp-train", options("saves", 1000000, "--batch-size 6 --save-interval 1s --keep-last 3")),
          [&](pid_t launcher) {
            wait_until([&] { return metrics(folder / "saves.jsonl", "save").size() >= 3; });
            kill(launcher, SIGUSR1);
          });
  BOOST_TEST(outcome.code == 75, outcome.output);
  const auto saves = metrics(folder / "saves.jsonl", "save");
  BOOST_TEST(saves.size() >= 3u);
  BOOST_TEST(saves[1]["step"].get<int>() > saves[0]["step"].get<int>() + 1);
  BOOST_TEST(names_in(folder / "saves").size() == 3u);
}

BOOST_AUTO_TEST_CASE(the_step_before_a_damaged_one_is_used) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 3, "saves", 6, "--save-interval-updates 2").code == 0);
  const auto undisturbed = losses(folder, "saves");
  damage(folder / "saves" / "step-00000006");
  std::fstream(folder / "saves" / "step-00000004" / "checkpoint.h5", std::ios::in | std::ios::out | std::ios::binary).put('x');
  const Outcome named = train(folder, 3, "other", 6, "--restore saves/step-00000006");
  BOOST_TEST(named.code == 1, named.output);
  BOOST_TEST(named.says("its checksum is"), named.output);
  BOOST_TEST(fs::exists(folder / "saves" / "step-00000006"));
  const Outcome outcome = train(folder, 3, "saves", 6);
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(outcome.times_said("It was renamed to") == 2u, outcome.output);
  BOOST_TEST(outcome.says("step-00000006.damaged"), outcome.output);
  BOOST_CHECK((names_in(folder / "saves") ==
               Names{"step-00000002", "step-00000004.damaged", "step-00000006", "step-00000006.damaged"}));
  BOOST_TEST(metrics(folder / "saves.jsonl", "restore").back()["step"] == 2);
  BOOST_TEST(losses(folder, "saves") == undisturbed, boost::test_tools::per_element());
  BOOST_TEST(metrics(folder / "saves.jsonl", "lost").size() == 4u);  // the repeated updates, with their first values
  for (const char* step : {"step-00000002", "step-00000006"}) damage(folder / "saves" / step);
  const Outcome nothing = train(folder, 2, "saves", 8);
  BOOST_TEST(nothing.code == 1, nothing.output);
  BOOST_TEST(nothing.says("no other checkpoint is left in saves"), nothing.output);
  for (const char* step : {"step-00000002.damaged", "step-00000006.damaged-2"}) BOOST_TEST(nothing.says(step), nothing.output);
  BOOST_TEST(nothing.times_said("fsdp-train: ") == 1u, nothing.output);
  BOOST_CHECK((names_in(folder / "saves") ==
               Names{"step-00000002.damaged", "step-00000004.damaged", "step-00000006.damaged", "step-00000006.damaged-2"}));
}

BOOST_AUTO_TEST_CASE(steps_that_lost_something_are_not_in_the_way) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 3, "saves", 8, "--save-interval-updates 2").code == 0);
  const auto undisturbed = losses(folder, "saves");
  fs::resize_file(folder / "saves" / "step-00000008" / "rank-00001-of-00003.h5", 1000);
  fs::remove(folder / "saves" / "step-00000006" / "checkpoint.h5");
  std::ofstream(folder / "saves" / "step-00000004" / "complete.json") << "";
  const Outcome outcome = train(folder, 3, "saves", 8, "--save-interval-updates 2");
  BOOST_TEST(outcome.code == 0, outcome.output);
  BOOST_TEST(outcome.times_said("is damaged, and was renamed to") == 3u, outcome.output);
  BOOST_CHECK((names_in(folder / "saves") == Names{"step-00000002", "step-00000004", "step-00000004.damaged", "step-00000006",
                                                   "step-00000006.damaged", "step-00000008", "step-00000008.damaged"}));
  BOOST_TEST(losses(folder, "saves").back() == undisturbed.back());
}

BOOST_AUTO_TEST_CASE(what_fp16_cannot_hold_is_not_consolidated_in_it) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 2, "saves", 3, "--optimizer lion --lr-scale *=1e7").code == 0);
  const auto consolidate = [&](const std::string& type) {
    return run(folder, {std::string(FSDP_BIN) + "/fsdp-consolidate", "saves", "model-" + type, "--dtype", type});
  };
  const Outcome narrow = consolidate("fp16");
  BOOST_TEST(narrow.code == 1, narrow.output);
  BOOST_TEST(narrow.says("which fp16 cannot hold"), narrow.output);
  BOOST_TEST(!fs::exists(folder / "model-fp16"));
  BOOST_TEST(consolidate("bf16").code == 0);
}

BOOST_AUTO_TEST_CASE(a_rank_reads_its_share_at_another_world_size) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 3, "saves", 1).code == 0);
  const double parameters = metrics(folder / "saves.jsonl", "start").back()["parameters"];
  for (const int np : {2, 4}) {
    const Outcome outcome = train(folder, np, "saves", np);
    BOOST_TEST(outcome.code == 0, outcome.output);
    BOOST_TEST(outcome.says("a rank reads at most "), outcome.output);
    const json restored = metrics(folder / "saves.jsonl", "restore").back();
    // 12 bytes: a parameter and both moments in fp32.
    const double share = restored["bytes_read"].get<double>() / (12 * parameters);
    BOOST_TEST(share >= 1.0 / np);
    BOOST_TEST(share < 1.02 / np);
    BOOST_TEST(restored["file_bytes"].get<double>() > 12 * parameters);
  }
}

BOOST_AUTO_TEST_CASE(what_checkpoints_cost_is_measured_and_nothing_is_left) {
  const auto folder = fresh_folder();
  const Outcome outcome =
      run(folder, mpirun(2, "../tests/bench-parts",
                         split("checkpoint --arch transformer_lm_gpt2_tiny --batch-size 1 --tokens-per-sample 16 "
                               "--sharding-strategy none --steps 2 --save-dir scratch --json")));
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
  const json found = json::parse(outcome.output);
  const double bytes = found["bytes"], model_bytes = found["model_bytes"];
  BOOST_TEST(bytes == 3 * model_bytes);
  for (const auto& [key, seconds] : found["seconds"].items()) {
    BOOST_TEST(seconds.size() == 2u, key);
    for (const double s : seconds) BOOST_TEST((s > 0 || key == "lost"), key);
  }
  for (const int ranks : {1, 2, 3}) {
    const double share = found["share_bytes"][std::to_string(ranks)].get<double>() / bytes;
    BOOST_TEST(share >= 0.999 / ranks);
    BOOST_TEST(share < 1.01 / ranks);
  }
  BOOST_TEST(found["consolidate_peak_bytes"].get<double>() > 8e6);
  BOOST_TEST(found["consolidate_peak_bytes"].get<double>() < 512 * 1048576.0);
  BOOST_TEST(fs::is_empty(folder / "scratch"));
}

BOOST_AUTO_TEST_CASE(fine_tuning_takes_the_weights_alone) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 3, "saves", 8).code == 0);
  for (const std::string format : {"hdf5", "safetensors"})
    BOOST_TEST(
        run(folder, {std::string(FSDP_BIN) + "/fsdp-consolidate", "saves", "model-" + format, "--format", format}).code == 0);
  BOOST_TEST(train(folder, 3, "first", 1, "--restore none --finetune-from saves").code == 0);
  const double first = losses(folder, "first").front();
  BOOST_TEST(first < losses(folder, "saves").front() - 0.05);
  for (const std::string source : {"saves/step-00000008", "model-hdf5", "model-safetensors"}) {
    const std::string name = "from-" + fs::path(source).filename().string();
    auto words = split("--tokens-per-sample 32 --batch-size 4 --lr 3e-3 --clip-norm 1 --max-update 3 --save-dir " + name +
                       " --log-file " + name + ".jsonl --finetune-from " + source);  // this sets the model, too
    words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
    const Outcome outcome = run(folder, mpirun(3, "fsdp-train", words));
    BOOST_TEST(outcome.code == 0, outcome.output);
    BOOST_TEST(losses(folder, name).front() == first);
    // If the save folder has a checkpoint, the run resumes it and does not start from --finetune-from.
    words[std::find(words.begin(), words.end(), "--max-update") - words.begin() + 1] = "5";
    BOOST_TEST(run(folder, mpirun(2, "fsdp-train", words)).code == 0);
    BOOST_TEST(metrics(folder / (name + ".jsonl"), "restore").back()["step"] == 3);
  }
  const Outcome other = train(folder, 2, "other", 1, "--finetune-from saves --decoder-layers 3");
  BOOST_TEST(other.code == 2);
  const Outcome missing = train(folder, 2, "other", 1, "--finetune-from nowhere");
  BOOST_TEST(missing.code == 2);
  BOOST_TEST(missing.times_said("fsdp-train: ") == 1u, missing.output);
}

BOOST_AUTO_TEST_CASE(another_vocabulary_keeps_the_rest) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 3, "saves", 8).code == 0);
  BOOST_TEST(run(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate saves model --format safetensors")).code == 0);
  const auto tune = [&](int np, const std::string& name, const std::string& more) {
    auto words = split("--tokens-per-sample 32 --total-batch-size 12 --batch-size " + std::to_string(12 / np) +
                       " --lr 1e-3 --max-update 2 --save-dir " + name + " --log-file " + name + ".jsonl " + more);
    words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
    return run(folder, mpirun(np, "fsdp-train", words));
  };
  const std::string larger = "--vocab-size 301 --finetune-from ";
  const Outcome refused = tune(2, "refused", larger + "saves");
  BOOST_TEST(refused.code == 2);
  BOOST_TEST(
      refused.says("in 1 tensor (transformer.wte.weight: its shape is [211, 48] in the source, but [301, 48] in the model)"),
      refused.output);
  BOOST_TEST(refused.says("--ignore-missing"), refused.output);
  BOOST_TEST(refused.times_said("fsdp-train: ") == 1u, refused.output);
  const Outcome model = tune(1, "refused", "--vocab-size 301 --model model");
  BOOST_TEST(model.code == 2);
  BOOST_TEST(model.says("name the tensors that may differ with --ignore-missing"), model.output);
  std::vector<double> first;
  for (const auto& [np, from] : std::vector<std::pair<int, std::string>>{
           {1, larger + "saves"}, {2, larger + "model"}, {2, "--vocab-size 301 --model model"}}) {
    const std::string name = "tuned-" + std::to_string(first.size());
    const Outcome tuned = tune(np, name, from + " --ignore-missing wte.weight");
    BOOST_TEST(tuned.code == 0, tuned.output);
    BOOST_TEST(tuned.times_said("transformer.wte.weight is newly initialized: its shape is [211, 48] in the source") == 1u,
               tuned.output);
    first.push_back(losses(folder, name).front());
  }
  BOOST_TEST(first[0] == first[1], boost::test_tools::tolerance(1e-6));
  BOOST_TEST(first[1] == first[2]);
  // The blocks are the trained ones, changed only by the two updates.
  const std::string compared = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect model tuned-0 --json")).output;
  const json difference = json::parse(compared.substr(compared.find('{')));  // after the progress lines
  for (const json& tensor : difference["tensors"])
    BOOST_TEST((tensor["why"] == "" ? tensor["relative"].get<double>() < 0.2 : tensor["name"] == "transformer.wte.weight"),
               tensor.dump());
  // The same command resumes from its own save. It has nothing left to do.
  BOOST_TEST(tune(2, "tuned-0", larger + "saves --ignore-missing wte.weight").code == 0);
  const Outcome other = tune(2, "tuned-0", "--vocab-size 303 --finetune-from saves --ignore-missing wte.weight");
  BOOST_TEST(other.says("vocab_size: 303 requested, 301 in the checkpoint"), other.output);
  BOOST_TEST(tune(2, "fresh", "--arch gpt2 --ignore-missing wte.weight").says("--ignore-missing changes nothing"));
}

BOOST_AUTO_TEST_CASE(tokenizer_files_are_remembered) {
  const auto folder = fresh_folder();
  fs::copy(golden_folder("gpt2-tied"), folder / "origin");
  std::ofstream(folder / "origin" / "tokenizer.json") << "{}";
  const auto job = [&](int np, int updates, const std::string& from) {
    auto words = split("--tokens-per-sample 32 --batch-size 4 --lr 1e-3 --max-update " + std::to_string(updates) + " " + from);
    words.push_back((golden_folder("gpt2-tied") / "train.bin").string());
    return run(folder, mpirun(np, "fsdp-train", words));
  };
  const auto consolidate = [&](const std::string& words) {
    return run(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate " + words + " --format safetensors"));
  };
  BOOST_TEST(job(2, 1, "--model origin --save-dir a").code == 0);
  BOOST_TEST(job(3, 2, "--save-dir a").code == 0);  // without --model
  BOOST_TEST(!job(1, 2, "--model origin --save-dir a").says("differ from"));
  std::ofstream(folder / "origin" / "tokenizer.json") << "{} ";
  std::ofstream(folder / "origin" / "generation_config.json") << "{}";
  const Outcome changed = job(1, 2, "--model origin --save-dir a");
  BOOST_TEST(changed.says("warning: generation_config.json, tokenizer.json of origin differ from the copies in "),
             changed.output);
  BOOST_TEST(changed.says("/a/step-00000002, and the run uses the copies; to use the changed files, give --tokenizer origin"),
             changed.output);
  BOOST_TEST(job(1, 1, "--finetune-from a --save-dir b").code == 0);  // without --model
  for (const std::string name : {"a", "b"}) {
    const Outcome outcome = consolidate(name + " model-" + name);
    BOOST_TEST(outcome.says("copied from " + name + "/step-"), outcome.output);
    BOOST_TEST(outcome.says(": tokenizer.json"), outcome.output);
    BOOST_TEST(fs::exists(folder / ("model-" + name) / "tokenizer.json"));
  }
  fs::rename(folder / "origin", folder / "moved");
  const Outcome gone = consolidate("b model");
  BOOST_TEST(gone.code == 0);
  BOOST_TEST(!gone.says("warning"), gone.output);  // the checkpoint contains the files
  BOOST_TEST(fs::exists(folder / "model" / "tokenizer.json"));
}

BOOST_AUTO_TEST_CASE(data_from_the_start) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 2, "saves", 4).code == 0);
  BOOST_TEST(train(folder, 2, "saves", 5, "--reset-dataloader --lr-scheduler fixed").code == 0);
  BOOST_TEST(train(folder, 2, "straight", 5).code == 0);
  // The fifth update repeats the first batch: its tokens are not those of the fifth batch, and they are already
  // learned.
  BOOST_TEST(losses(folder, "saves").back() != losses(folder, "straight").back());
  BOOST_TEST(losses(folder, "saves").back() < losses(folder, "saves").front());
}

BOOST_AUTO_TEST_CASE(a_save_that_goes_on_has_the_same_bits) {
  const auto folder = fresh_folder();
  const std::string often = "--save-interval-updates 2 --optimizer adafactor --optimizer-state-dtype fp32 ";
  for (const std::string strategy : {"full", "none", "hybrid --shard-group-size 2"}) {
    const std::string name = strategy.substr(0, 4), more = often + "--sharding-strategy " + strategy;
    BOOST_TEST(train(folder, 4, "meanwhile-" + name, 7, more).code == 0);
    BOOST_TEST(train(folder, 4, "waiting-" + name, 7, more + " --no-async-save").code == 0);
    for (const char* step : {"step-00000002", "step-00000004", "step-00000006", "step-00000007"})
      for (const auto& entry : fs::directory_iterator(folder / ("waiting-" + name) / step)) {
        const fs::path file = entry.path().filename();
        if (file == "complete.json" || file == "checkpoint.h5" || file.extension() != ".h5") continue;
        BOOST_TEST(fs::exists(folder / ("meanwhile-" + name) / step / file));
      }
    const Outcome same = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect meanwhile-" + name +
                                           "/step-00000004 waiting-" + name + "/step-00000004"));
    BOOST_TEST(same.says("are the same, bit for bit"), same.output);
    const auto saves = metrics(folder / ("meanwhile-" + name + ".jsonl"), "save");
    BOOST_TEST_REQUIRE(saves.size() == 4u);
    for (const json& save : saves) BOOST_TEST(save["stall_ms"].get<double>() <= save["ms"].get<double>());
    // The optimizer's state is the same, too: a resumed run has the same losses.
    const auto whole = losses(folder, "waiting-" + name);
    const Outcome resumed = train(folder, 4, "again-" + name, 7, more + " --restore meanwhile-" + name + "/step-00000004");
    BOOST_TEST(resumed.code == 0, resumed.output);
    BOOST_TEST(losses(folder, "again-" + name) == std::vector<double>(whole.begin() + 4, whole.end()),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(compressed_saves_are_the_same_and_smaller) {
  const auto folder = fresh_folder();
  const std::string often = "--save-interval-updates 2 ";
  BOOST_TEST(train(folder, 2, "plain", 4, often).code == 0);
  BOOST_TEST(train(folder, 2, "gzip", 4, often + "--compress gzip").code == 0);
  for (const std::string step : {"step-00000002", "step-00000004"}) {
    const auto size = [&](const std::string& name) { return fs::file_size(folder / name / step / "rank-00001-of-00002.h5"); };
    BOOST_TEST(size("gzip") < size("plain"));
    const Outcome same = run(folder, split(std::string(FSDP_BIN) + "/fsdp-inspect plain/" + step + " gzip/" + step));
    BOOST_TEST(same.says("are the same, bit for bit"), same.output);
  }
  for (const std::string name : {"plain", "gzip"}) BOOST_TEST(train(folder, 3, name, 6).code == 0);  // resume both
  BOOST_TEST(losses(folder, "gzip") == losses(folder, "plain"), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_disk_that_is_full_ends_the_run_and_loses_nothing) {
  const auto folder = fresh_folder();
  for (const std::string more : {"", " --no-async-save"}) {
    const std::string name = more.empty() ? "meanwhile" : "waiting";
    BOOST_TEST(train(folder, 2, name, 2, more).code == 0);
    const std::vector<std::string> limit = {"sh", "-c", "trap '' XFSZ; ulimit -f 200 && exec \"$@\"", "sh"};
    const Outcome full =
        run(folder, mpirun(2, "fsdp-train", options(name, 1000, "--batch-size 6 --save-interval-updates 3" + more), limit));
    BOOST_TEST(full.code == 1, full.output);
    BOOST_TEST(full.times_said("fsdp-train: ") == 1u, full.output);
    BOOST_TEST(full.says("could not be written"), full.output);
    BOOST_CHECK((names_in(folder / name) == Names{"step-00000002"}));
    BOOST_TEST(train(folder, 3, name, 4).code == 0);
    BOOST_TEST(metrics(folder / (name + ".jsonl"), "restore").back()["step"] == 2);
  }
}

BOOST_AUTO_TEST_CASE(what_is_in_a_checkpoint_is_shown) {
  const auto folder = fresh_folder();
  BOOST_TEST(train(folder, 3, "saves", 3, "--save-interval-updates 2").code == 0);
  const auto inspect = [&](const std::string& words) {
    std::vector<std::string> command = split(words);
    command.insert(command.begin(), std::string(FSDP_BIN) + "/fsdp-inspect");
    return run(folder, command);
  };
  const Outcome all = inspect("saves --verify");
  BOOST_TEST(all.code == 0, all.output);
  for (const char* text :
       {"update 3, ", "strategy full, 3 shards", "4 files, all checksums as written; 84 tensors, all norms as saved",
        "transformer.wte.weight", "[211, 48]", "optimizer adamw", "0-2"})
    BOOST_TEST(all.says(text), text << " is not in " << all.output);
  const json parsed = json::parse(inspect("saves --json").output);
  BOOST_TEST(parsed["update"] == 3);
  BOOST_TEST(parsed["non_finite"] == 0);
  BOOST_TEST(json::parse(inspect("saves --options").output)["lr"] == 3e-3);
  json tensor = json::parse(inspect("saves --tensor transformer.h.1.mlp.c_fc.weight --json").output);
  BOOST_TEST(tensor["exp_avg_sq"]["min"].get<double>() >= 0.0);
  std::size_t held = 0;
  for (const json& part : tensor["holders"]) held += part["end"].get<std::size_t>() - part["begin"].get<std::size_t>();
  BOOST_TEST(held == 48u * 192u);
  for (const char* state : {"parameters", "exp_avg", "exp_avg_sq"}) {
    BOOST_TEST(tensor[state]["saved_norm"] == tensor[state]["norm"]);
    tensor[state].erase("saved_norm");  // consolidated models have no saved norm
  }

  for (const std::string words : {"model.h5", "model --format safetensors"}) {
    BOOST_TEST(run(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate saves " + words + " --with-optimizer")).code == 0);
    json whole =
        json::parse(inspect(words.substr(0, words.find(' ')) + " --tensor transformer.h.1.mlp.c_fc.weight --json").output);
    whole["holders"] = tensor["holders"];
    BOOST_TEST(whole == tensor);
  }
  BOOST_TEST(inspect("model.h5").says("states: parameters, exp_avg, exp_avg_sq"));
  BOOST_TEST(run(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate saves low --format safetensors --dtype bf16")).code ==
             0);
  BOOST_TEST(inspect("saves model").says("the parameters, 28 tensors, are the same, bit for bit"),
             inspect("saves model").output);
  const std::string compared = inspect("saves low --json").output;  // after the progress lines
  const json low = json::parse(compared.substr(compared.find('{')));
  BOOST_TEST(low["different"].get<int>() > 0);
  for (const json& one : low["tensors"]) BOOST_TEST(one["relative"].get<double>() < 0.004);
  const Outcome different = inspect("saves/step-00000002 saves/step-00000003");
  BOOST_TEST(different.says("of 28 parameter tensors differ"));
  BOOST_TEST(different.code == 1);
  BOOST_TEST(inspect("saves/step-00000002 saves/step-00000003 --json").code == 1);
  BOOST_TEST(inspect("saves model").code == 0);
  BOOST_TEST(inspect("model --verify").code == 2);
  BOOST_TEST(inspect("nowhere").code == 2);
  BOOST_TEST(inspect("saves --tensor nothing").code == 2);
  damage(folder / "saves" / "step-00000003");
  const Outcome damaged = inspect("saves --verify");
  BOOST_TEST(damaged.code == 1);
  BOOST_TEST(damaged.says("is damaged (its checksum is"), damaged.output);
}
