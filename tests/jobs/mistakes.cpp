// Users' mistakes: each gives one clear message and a non-zero exit code, does not hang, and does not change the last
// good checkpoint.
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"
#include "support/golden.hpp"

using namespace fsdp::test;

namespace {

const std::string tokens = (golden_folder("gpt2-tied") / "train.bin").string();

std::vector<std::string> plus(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> model = split(
    "--arch gpt2 --vocab-size 211 --decoder-layers 2 --decoder-embed-dim 24 --decoder-attention-heads 3 --tokens-per-sample 16 "
    "--batch-size 2 --max-update 2");

/// Returns the command that runs fsdp-train in one process, without a launcher.
std::vector<std::string> alone(const std::vector<std::string>& words) { return plus({FSDP_BIN "/fsdp-train"}, words); }

/// Checks that the exit code is `code`, that the output contains all of `texts`, and that there is one message.
void expect_failure(int ranks, int code, const fs::path& folder, const std::vector<std::string>& words,
                    const std::vector<std::string>& texts, const std::string& program = "fsdp-train") {
  const Outcome outcome = run(folder, ranks == 1 ? plus({FSDP_BIN "/" + program}, words) : mpirun(ranks, program, words));
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == code);
    for (const std::string& text : texts) BOOST_TEST(outcome.says(text), text);
    BOOST_TEST(outcome.times_said(program + ": ") == 1u);
  }
}

/// Most cases run one process without a launcher, which takes a third of the time of a job. One mistake of each kind is
/// tested with 3 ranks.
void expect_mistake(const fs::path& folder, const std::vector<std::string>& words, const std::vector<std::string>& texts) {
  expect_failure(1, 2, folder, words, texts);
}
void expect_one_message(const fs::path& folder, const std::vector<std::string>& words, const std::vector<std::string>& texts) {
  expect_failure(3, 2, folder, words, texts);
}

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs the command as another user, so that permissions also apply if the tests run as root.
std::vector<std::string> with_permissions(std::vector<std::string> command) {
  const std::vector<std::string> words = split("setpriv --bounding-set -dac_override");
  if (geteuid() == 0) command.insert(command.begin(), words.begin(), words.end());
  return command;
}
boost::test_tools::assertion_result permissions_count(boost::unit_test::test_unit_id) {
  if (geteuid() != 0 || std::system("setpriv --bounding-set -dac_override true") == 0) return true;
  boost::test_tools::assertion_result no(false);
  no.message() << "root cannot give up its rights here";
  return no;
}

void copy_part(const fs::path& from, const fs::path& to, std::size_t bytes) {
  std::ifstream in(from, std::ios::binary);
  std::string content(bytes, ' ');
  in.read(content.data(), static_cast<std::streamsize>(bytes));
  std::ofstream(to, std::ios::binary).write(content.data(), in.gcount());
}

}  // namespace

BOOST_AUTO_TEST_CASE(options_that_are_not) {
  const auto folder = fresh_folder();
  expect_one_message(folder, plus({tokens, "--batchsize", "3"}, model), {"--batchsize", "did you mean --batch-size?"});
  expect_mistake(folder, plus({tokens, "--lr", "fast"}, model), {"--lr", "fast"});
  expect_mistake(folder, plus({tokens, "--sharding-strategy", "fulll"}, model),
                 {"fulll", "did you mean full?", "full, grad-op"});
  // Sharding strategies, wrapping and trained parameters.
  expect_one_message(folder, plus({tokens, "--sharding-strategy", "hybrid", "--shard-group-size", "2"}, model),
                     {"groups of 2", "3 ranks"});
  expect_mistake(folder, plus({tokens, "--freeze", "h.9.*"}, model), {"--freeze 'h.9.*' matches no parameter"});
  expect_mistake(folder, plus({tokens, "--train-only", "lm_head.weight"}, model),
                 {"matches no parameter: lm_head.weight is the same tensor as transformer.wte.weight (tie_word_embeddings)"});
  expect_mistake(folder, plus({tokens, "--train-only", "h.1.*", "--freeze", "h.*"}, model), {"every parameter is frozen"});
  expect_mistake(folder, plus({tokens, "--wrap-policy", "custom", "--wrap-units", "h.0,h.[01]"}, model), {"overlap"});
  expect_mistake(folder, plus({tokens, "--ddp-backend", "pytorch_ddp", "--sharding-strategy", "full"}, model), {"contradicts"});
  // Sizes that nobody means are refused at once.
  expect_mistake(folder, plus({tokens, "--update-freq", "100000"}, model), {"--update-freq", "too long"});
  expect_mistake(folder, plus({tokens, "--decoder-kv-heads", "1000000000000"}, model), {"--decoder-kv-heads", "out of range"});
  expect_one_message(folder, {tokens, "--arch", "gpt2-xl", "--batch-size", "1000000", "--max-update", "1"},
                     {"too little memory", "--batch-size"});
  expect_mistake(folder, plus({tokens, "--total-batch-size", "7"}, model), {"--total-batch-size", "7"});
  expect_mistake(folder, {tokens, "--arch", "gtp2", "--max-update", "2"}, {"gtp2", "did you mean", "gpt2"});
  expect_one_message(folder, plus({tokens, "--config", "none.cfg"}, model), {"none.cfg"});
}

BOOST_AUTO_TEST_CASE(options_of_other_programs) {
  const auto folder = fresh_folder();
  const auto expect_said = [&](const char* options, const std::string& text) {
    expect_mistake(folder, plus(plus({tokens}, model), split(options)), {text});
  };
  expect_said("--activation-fn relu", "--activation-fn relu is not possible in a model of the family gpt2");
  expect_said("--per_device_train_batch_size 4", "(another program's name for it); give --batch-size");
  expect_said("--task translation", "language_modeling");
  std::ofstream(folder / "ds.json")
      << "{\n  \"train_micro_batch_size_per_gpu\": 4,\n  \"zero_optimization\": {\"stage\": 3}\n}\n";
  expect_said("--config ds.json", "cannot read --config 'ds.json' (it is a configuration of DeepSpeed, in JSON); give lines");
  std::ofstream(folder / "titan.toml") << "[training]\nlocal_batch_size = 8\n[parallelism]\ntensor_parallel_degree = 1\n";
  expect_said("--config titan.toml",
              "cannot read --config 'titan.toml' (it is a configuration of torchtitan, in TOML); give lines");
  std::ofstream(folder / "part.toml") << "[training]\nlocal_batch_size = 8\n";
  expect_said("--config part.toml", "(another program's name for it); give --batch-size");
  std::ofstream(folder / "understood.toml") << "[profiling]\nseed = 8\n";
  expect_said("--config understood.toml", "(it is a configuration of torchtitan, in TOML); give lines");
  std::ofstream(folder / "ours.ini") << "[model]\narch = gpt2\n[optimizer]\nlr = 1e-3\n[run]\nnonsense = 1\n";
  expect_said("--config ours.ini", "ours.ini:6: unknown option nonsense");
  std::ofstream(folder / "fsdp.yaml") << "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n";
  expect_said("--config fsdp.yaml", "(it is a configuration of Hugging Face's accelerate, in YAML); give lines");
  expect_said("--no-save --save-interval-updates 1", "--no-save contradicts other options for saves");
}

BOOST_AUTO_TEST_CASE(data_that_is_not) {
  const auto folder = fresh_folder();
  std::ofstream(folder / "empty.bin") << "";
  std::ofstream(folder / "text.bin") << std::string(5000, 'x') + "\u5b57";
  copy_part(tokens, folder / "truncated.bin", 9000);
  copy_part(tokens, folder / "header.bin", 100);
  expect_one_message(folder, plus({"none.bin"}, model), {"none.bin"});
  expect_mistake(folder, plus({"empty.bin"}, model), {"empty.bin", "empty"});
  expect_one_message(folder, plus({"text.bin"}, model), {"'text.bin' holds the token", "(229, at position 5000)", "0 to 210"});
  expect_mistake(folder, plus({"truncated.bin"}, model), {"truncated.bin"});
  expect_mistake(folder, plus({"header.bin"}, model), {"header.bin"});
  expect_mistake(folder, plus({tokens, "--valid", "none.bin"}, model), {"none.bin"});
}

BOOST_AUTO_TEST_CASE(models_that_are_not) {
  const auto folder = fresh_folder();
  // A GGUF file and an adapter's folder are no Hugging Face model folders.
  std::ofstream(folder / "model.gguf") << "GGUF";
  fs::create_directory(folder / "lora");
  std::ofstream(folder / "lora" / "adapter_config.json") << "{}";
  expect_mistake(folder, {tokens, "--model", "model.gguf", "--max-update", "2"}, {"model.gguf is a GGUF file"});
  expect_mistake(folder, {tokens, "--model", "lora", "--max-update", "2"}, {"merge it into that model"});
  // The tokens of the golden runs go up to 210.
  expect_mistake(folder,
                 {tokens, "--arch", "gpt2", "--vocab-size", "100", "--decoder-layers", "1", "--decoder-embed-dim", "24",
                  "--decoder-attention-heads", "3", "--tokens-per-sample", "16", "--max-update", "2"},
                 {"100", "vocab"});
  expect_mistake(folder,
                 {tokens, "--arch", "gpt2", "--decoder-embed-dim", "25", "--decoder-attention-heads", "3", "--max-update", "2"},
                 {"3", "25", "--decoder-"});
  expect_mistake(folder, plus({tokens, "--tokens-per-sample", "4096"}, {"--arch", "gpt2", "--max-update", "2"}),
                 {"4096", "1024"});
  expect_mistake(folder, {tokens, "--model", "none", "--max-update", "2", "--tokens-per-sample", "16"}, {"none"});
  const auto golden = golden_folder("gpt2-tied");
  // One weight in one rank's shard is NaN.
  fs::create_directory(folder / "nan");
  fs::copy(golden / "config.json", folder / "nan");
  std::string weights = read_whole(golden / "model.safetensors");
  weights.replace(weights.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  std::ofstream(folder / "nan" / "model.safetensors", std::ios::binary) << weights;
  expect_one_message(folder, {tokens, "--model", "nan", "--tokens-per-sample", "16", "--max-update", "2"},
                     {"nan/model.safetensors holds weights that are not finite (element "});
  expect_failure(1, 2, folder, {"nan", tokens, "--tokens-per-sample", "16"}, {"holds weights that are not finite"},
                 "fsdp-evaluate");
  for (const std::size_t bytes : {0u, 5u, 300u, 200000u}) {
    fs::remove_all(folder / "broken");
    fs::create_directory(folder / "broken");
    fs::copy(golden / "config.json", folder / "broken");
    copy_part(golden / "model.safetensors", folder / "broken" / "model.safetensors", bytes);
    expect_failure(bytes == 200000u ? 3 : 1, 2, folder,
                   {tokens, "--model", "broken", "--max-update", "2", "--tokens-per-sample", "16"}, {"model.safetensors"});
  }
  std::ofstream(folder / "broken" / "config.json") << "{\"model_type\": \"bert\"}";
  expect_mistake(folder, {tokens, "--model", "broken", "--max-update", "2", "--tokens-per-sample", "16"}, {"bert"});
}

BOOST_AUTO_TEST_CASE(checkpoints_that_do_not_fit_or_are_damaged) {
  const auto folder = fresh_folder();
  const Outcome first = run(folder, mpirun(3, "fsdp-train", plus({tokens, "--save-dir", "saves"}, model)));
  BOOST_TEST_REQUIRE(first.code == 0, first.output);
  const fs::path step = folder / "saves" / "step-00000002";
  BOOST_TEST_REQUIRE(fs::exists(step));
  // A dry run does not need a checkpoint that fits. It warns of what would stop a run.
  std::vector<std::string> dry = plus({tokens, "--save-dir", "saves", "--dry-run"}, model);
  *std::find(dry.begin(), dry.end(), "24") = "48";
  const Outcome plan = run(folder, mpirun(3, "fsdp-train", dry));
  BOOST_TEST(plan.code == 0, plan.output);
  BOOST_TEST(plan.says("warning: a run would not start: checkpoint saves/step-00000002"), plan.output);
  BOOST_TEST(plan.says("n_embd: 48 requested, 24 in the checkpoint"), plan.output);
  BOOST_TEST(plan.says("operations of one update:"), plan.output);
  dry = plus({tokens, "--save-dir", "saves", "--dry-run", "--restore", "none"}, model);
  BOOST_TEST(run(folder, alone(dry)).code == 0);
  // Planning for GPUs works without a GPU; training does not.
  const std::vector<std::string> on_this = dry;
  dry = plus(dry, {"--device", "cuda"});
  const Outcome for_gpus = run(folder, alone(dry));
  BOOST_TEST(for_gpus.code == 0, for_gpus.output);
  BOOST_TEST(for_gpus.says("GPU memory in total: "), for_gpus.output);
  BOOST_TEST(!for_gpus.says("offloaded"), for_gpus.output);
  // On a GPU, offloaded memory is shown separately. A CPU has only one memory.
  const Outcome offloaded = run(folder, alone(plus(dry, {"--offload-params", "cpu"})));
  BOOST_TEST(offloaded.code == 0, offloaded.output);
  for (const char* text : {"offload slots", "offloaded to the host's memory:", "load block 0", "unload block 0"})
    BOOST_TEST(offloaded.says(text), offloaded.output);
  const Outcome on_cpu = run(folder, alone(plus(on_this, {"--offload-params", "cpu"})));
  BOOST_TEST(on_cpu.says("nothing is offloaded to the host: on CPUs all memory"), on_cpu.output);
  BOOST_TEST(!on_cpu.says("load block 0"), on_cpu.output);
  // The printed configuration can be read back.
  const Outcome printed = run(folder, alone(plus(dry, {"--offload-params", "cpu", "--print-config"})));
  BOOST_TEST(printed.code == 0, printed.output);
  std::ofstream(folder / "printed.cfg") << printed.output;
  const Outcome read_back = run(folder, alone({"--config", "printed.cfg"}));
  BOOST_TEST(read_back.code == 0, read_back.output);
  BOOST_TEST(read_back.says("on the host per rank"), read_back.output);
  expect_mistake(folder, plus(dry, {"--comm-thread"}), {"--comm-thread changes nothing on GPUs"});
  expect_mistake(folder, plus({tokens, "--save-dir", "saves", "--device", "cuda"}, model),
                 {"--device cuda", "finds no GPU", "--device cpu"});
  // If the model family differs, the message names only that.
  const Outcome llama = run(
      folder, alone({tokens, "--save-dir", "saves", "--arch", "llama-7b", "--tokens-per-sample", "16", "--max-update", "4"}));
  BOOST_TEST(llama.says("(model_type: \"llama\" requested, \"gpt2\" in the checkpoint)"), llama.output);
  // If all updates are done, the output has no rate and no memory peak.
  const Outcome nothing = run(folder, mpirun(3, "fsdp-train", plus({tokens, "--save-dir", "saves"}, model)));
  BOOST_TEST(nothing.says("tokens\nnothing to do"), nothing.output);
  // Output names that contradict the output's format.
  for (const char* words :
       {"saves out.safetensors", "saves out.safetensors --format safetensors", "saves out.h5 --format safetensors",
        "saves out.pt", "saves out.PTH", "saves out.bin/", "saves out.gguf", "saves out.npz --format safetensors"}) {
    const Outcome named = run(folder, split(std::string(FSDP_BIN) + "/fsdp-consolidate " + words));
    BOOST_TEST(named.code == 2, named.output);
    BOOST_TEST(named.says("would be a"), named.output);
  }
  // A checkpoint of another model.
  expect_one_message(
      folder,
      {tokens, "--save-dir", "saves", "--arch", "gpt2", "--vocab-size", "211", "--decoder-layers", "3", "--decoder-embed-dim",
       "24", "--decoder-attention-heads", "3", "--tokens-per-sample", "16", "--max-update", "4"},
      {"another model", "n_layer"});
  // Resuming from a damaged copy fails; the original stays good.
  const auto damage = [&](const std::string& name, const std::string& problem,
                          const std::function<void(const fs::path&)>& what) {
    fs::remove_all(folder / name);
    fs::copy(step, folder / name, fs::copy_options::recursive);
    what(folder / name);
    expect_failure(3, 1, folder,
                   plus({tokens, "--save-dir", "new", "--restore", name, "--max-update", "4"},
                        std::vector<std::string>(model.begin(), model.end() - 2)),
                   {name, problem});
    BOOST_TEST(!fs::exists(folder / "new"));
    expect_failure(1, 1, folder, {name, tokens, "--tokens-per-sample", "16"}, {name, problem}, "fsdp-evaluate");
  };
  damage("no-marker", "it has no complete.json", [](const fs::path& f) { fs::remove(f / "complete.json"); });
  damage("no-rank-1", "rank-00001-of-00003.h5 is missing", [](const fs::path& f) { fs::remove(f / "rank-00001-of-00003.h5"); });
  damage("truncated", "rank-00002-of-00003.h5 has", [](const fs::path& f) {
    fs::resize_file(f / "rank-00002-of-00003.h5", fs::file_size(f / "rank-00002-of-00003.h5") / 2);
  });
  damage("no-index", "checkpoint.h5 is missing", [](const fs::path& f) { fs::remove(f / "checkpoint.h5"); });
  const Outcome another = run(folder, mpirun(3, "fsdp-train", plus({tokens, "--save-dir", "others"}, model)));
  BOOST_TEST_REQUIRE(another.code == 0, another.output);
  const fs::path others = folder / "others" / "step-00000002";
  const auto taken = fs::copy_options::overwrite_existing;
  damage("index-of-another", "checkpoint.h5 ",
         [&](const fs::path& f) { fs::copy_file(others / "checkpoint.h5", f / "checkpoint.h5", taken); });
  damage("index-and-marker-of-another", "rank-00000-of-00003.h5 is damaged", [&](const fs::path& f) {
    for (const char* file : {"checkpoint.h5", "complete.json"}) fs::copy_file(others / file, f / file, taken);
  });
  // Starting from the beginning is refused if the folder has steps, in any state.
  fs::copy(folder / "saves", folder / "flipped", fs::copy_options::recursive);
  std::string index = read_whole(folder / "flipped" / "step-00000002" / "checkpoint.h5");
  for (std::size_t i = 0; i < index.size(); i += 64) index[i] = static_cast<char>(~index[i]);
  std::ofstream(folder / "flipped" / "step-00000002" / "checkpoint.h5") << index;
  for (const auto& [name, ranks] : {std::pair{"saves", 3}, {"flipped", 1}})
    expect_failure(ranks, 2, folder, plus({tokens, "--save-dir", name, "--restore", "none"}, model),
                   {name, "has steps up to 2, but the run would start from step 0"});
  // With --no-save the run is allowed, because it overwrites nothing.
  const Outcome unsaved = run(folder, alone(plus({tokens, "--save-dir", "flipped", "--restore", "none", "--no-save"}, model)));
  BOOST_TEST(unsaved.code == 0, unsaved.output);
  BOOST_TEST(fs::exists(folder / "flipped" / "step-00000002"));
  // A step of a newer format may be intact, so it is neither skipped nor renamed.
  std::string marker = read_whole(others / "complete.json");
  marker.replace(marker.find("\"format_version\": 1"), 19, "\"format_version\": 2");
  std::ofstream(others / "complete.json") << marker;
  for (const char* restore : {"latest", "others"})
    expect_mistake(
        folder, plus({tokens, "--save-dir", "others", "--restore", restore}, model),
        {"step-00000002/complete.json has format version 2 (this program reads version 1); use the fsdp that wrote it"});
  BOOST_TEST(read_whole(others / "complete.json") == marker);
  const Outcome good = run(folder, mpirun(2, "fsdp-evaluate", {"saves", tokens, "--tokens-per-sample", "16"}));
  BOOST_TEST(good.code == 0, good.output);
}

BOOST_AUTO_TEST_CASE(what_a_run_says_at_its_start_and_end) {
  const auto folder = fresh_folder();
  fs::copy(golden_folder("gpt2-tied"), folder / "model");
  std::string config = read_whole(folder / "model" / "config.json");
  for (const char* rate : {"\"attn_pdrop\": 0.0", "\"embd_pdrop\": 0.0", "\"resid_pdrop\": 0.0"})
    config.replace(config.find(rate) + std::string(rate).size() - 3, 3, "0.1");
  std::ofstream(folder / "model" / "config.json") << config;
  const Outcome tuned = run(folder, mpirun(2, "fsdp-train",
                                           split(tokens + " --model model --freeze *wte* --save-dir tuned --max-update 2 "
                                                          "--tokens-per-sample 16 --batch-size 1")));
  BOOST_TEST_REQUIRE(tuned.code == 0, tuned.output);
  BOOST_TEST(tuned.says(" trained, the others frozen), "), tuned.output);
  BOOST_TEST(tuned.times_said("which is not used") == 1u, tuned.output);
  BOOST_TEST(tuned.says("asks for dropout (embd_pdrop 0.1, resid_pdrop 0.1, attn_pdrop 0.1), which is not used"), tuned.output);
  const Outcome small = run(folder, alone(split(tokens + " --arch gpt2 --vocab-size 211 --decoder-layers 1 --decoder-embed-dim "
                                                         "24 --decoder-attention-heads 3 --save-dir small --max-update 1 "
                                                         "--tokens-per-sample 16 --batch-size 1")));
  BOOST_TEST_REQUIRE(small.code == 0, small.output);
  BOOST_TEST(small.says(" parameters, 1 block, width 24; strategy full over 1 rank; 1 sequence of 16 tokens"), small.output);
}

BOOST_AUTO_TEST_CASE(save_folders_that_cannot_be_used) {
  const auto folder = fresh_folder();
  std::ofstream(folder / "file") << "x";
  expect_one_message(folder, plus({tokens, "--save-dir", "file"}, model), {"file", "choose another --save-dir"});
  expect_mistake(folder, plus({tokens, "--save-dir", "file/below"}, model), {"file/below", "choose another --save-dir"});
  expect_mistake(folder, plus({tokens, "--restore", "none-there"}, model), {"none-there does not exist"});
  expect_mistake(folder, plus({tokens, "--restore", "file"}, model), {"file is not a folder"});
  fs::create_symlink("nowhere", folder / "link");
  expect_mistake(folder, plus({tokens, "--save-dir", "link"}, model), {"link (it is a link to a missing folder)"});
  expect_mistake(folder, plus({tokens, "--save-dir", "new", "--log-file", "./new"}, model),
                 {"are both './new' (one is a file"});
  for (const char* words : {"--log-file new/report.html", "--trace new/metrics.jsonl", "--trace new/report.html",
                            "--log-file x --trace ./x", "--tensorboard new/step-00000002", "--log-file new/stop"})
    expect_mistake(folder, plus(plus({tokens, "--save-dir", "new"}, split(words)), model), {"give another name"});
  expect_mistake(folder, plus({"missing.bin", "--save-dir", "new/"}, model), {"missing.bin"});
  BOOST_TEST(!fs::exists(folder / "new"));
  // Files that would make a save fail are found before the first update.
  const auto in_the_way = [&](const std::string& name, const fs::path& what, bool refused) {
    fs::create_directories((folder / name / what).parent_path());
    std::ofstream(folder / name / what) << "x";
    const Outcome outcome = run(folder, alone(plus({tokens, "--log-interval", "1", "--save-dir", name}, model)));
    BOOST_TEST(outcome.code == (refused ? 2 : 0), outcome.output);
    BOOST_TEST(outcome.says(" is in the way of a save (it is no complete checkpoint") == refused, outcome.output);
    BOOST_TEST(outcome.says("step 2/2") != refused, outcome.output);
  };
  in_the_way("way-1", "step-00000002/.nfs0001", true);
  in_the_way("way-2", "step-00000002", true);
  in_the_way("way-3", "step-00000008.tmp/x", true);
  in_the_way("way-4", "step-00000002/checkpoint.h5", false);  // left by a save that was never finished
  // A second job in the save folder of a running job.
  std::vector<std::string> words = plus({tokens, "--save-dir", "saves", "--log-file", "log.jsonl"}, model);
  words.back() = "1000000";
  const Outcome first = run(folder, mpirun(2, "fsdp-train", words), [&](pid_t job) {
    wait_until([&] { return metrics(folder / "log.jsonl", "train").size() > 3; });
    const auto other = folder / "other";
    fs::create_directory(other);
    expect_failure(3, 1, other, plus({tokens, "--save-dir", "../saves"}, model), {"saves is in use", "choose another folder"});
    kill(job, SIGUSR1);
  });
  BOOST_TEST(first.code == 75, first.output);
  BOOST_TEST(!fs::exists(folder / "saves" / "lock"));
}

// A run that cannot print continues and saves: full disks, closed descriptors, and ended readers of a pipe.
BOOST_AUTO_TEST_CASE(a_log_that_cannot_be_written) {
  const auto folder = fresh_folder();
  std::string command = FSDP_BIN "/fsdp-train " + tokens + " --log-interval 1 --save-dir saves";
  for (const std::string& word : model) command += " " + word;
  const std::string consolidate = FSDP_BIN "/fsdp-consolidate saves model.h5";
  for (const char* lost : {"2>/dev/full", "2>&-"}) {
    const Outcome trained = run(folder, {"bash", "-c", command + " " + lost});
    BOOST_TEST(trained.code == 0, lost << trained.output);
    BOOST_TEST(fs::exists(folder / "saves" / "step-00000002" / "complete.json"), lost);
    const Outcome made = run(folder, {"bash", "-c", consolidate + " " + lost});
    BOOST_TEST(made.code == 0, lost << made.output);
    for (const char* name : {"saves", "model.h5"}) fs::remove_all(folder / name);
  }
  const Outcome read =
      run(folder, {"bash", "-c", "{ " + command + " --save-interval-updates 1 2>&1; echo $? >code; } | true; cat code"});
  BOOST_TEST(read.says("0"), read.output);
  BOOST_TEST(fs::exists(folder / "saves" / "step-00000002" / "complete.json"));
  for (const char* program : {"fsdp-inspect none", "fsdp-tokenize none --out none.bin"}) {
    const Outcome refused = run(folder, {"bash", "-c", std::string(FSDP_BIN "/") + program + " 2>/dev/full"});
    BOOST_TEST(refused.code == 2, program);
  }
}

BOOST_AUTO_TEST_CASE(links_in_a_save_folder_lead_nowhere) {
  const auto folder = fresh_folder();
  std::ofstream(folder / "text.txt") << std::string(4000, 'x');
  fs::create_directory(folder / "home");
  std::ofstream(folder / "home" / "rank-00000-of-00001.flight") << "precious";
  for (const std::string name : {"tokens", "flight", "lock"}) {
    const fs::path saves = folder / ("with-" + name);
    fs::create_directory(saves);
    fs::create_directory_symlink("../home", saves / name);
    expect_mistake(folder,
                   split("text.txt --arch gpt2 --decoder-layers 1 --decoder-embed-dim 16 --decoder-attention-heads 1 "
                         "--tokens-per-sample 16 --max-update 1 --save-dir with-" +
                         name),
                   {"with-" + name + "/" + name + " is in the way", "move it away"});
    BOOST_TEST(std::distance(fs::directory_iterator(folder / "home"), {}) == 1);
    BOOST_TEST(read_whole(folder / "home" / "rank-00000-of-00001.flight") == "precious");
  }
}

namespace {

/// Runs a process of user `id` and group 100, with umask 002.
std::vector<std::string> as_member(const std::string& id, const std::string& command) {
  return {"setpriv", "--reuid=" + id, "--regid=100", "--clear-groups", "bash", "-c", "umask 002; HOME=/tmp exec " + command};
}
boost::test_tools::assertion_result can_be_others(boost::unit_test::test_unit_id) {
  const std::string test = "setpriv --reuid=2001 --regid=100 --clear-groups test -x " FSDP_BIN "/fsdp-train";
  boost::test_tools::assertion_result yes(geteuid() == 0 && std::system(test.c_str()) == 0);
  yes.message() << "only root can be two users";
  return yes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(members_of_a_group_continue_each_others_runs, *boost::unit_test::precondition(can_be_others)) {
  const auto folder = fresh_folder();
  std::ofstream(folder / "text.txt") << std::string(4000, 'x');
  BOOST_TEST_REQUIRE(chown(folder.c_str(), 0, 100) == 0);
  fs::permissions(folder, fs::perms(02775));
  const std::string bin = std::string(FSDP_BIN) + "/", train = bin +
                                                               "fsdp-train text.txt --arch gpt2 --decoder-layers 1 "
                                                               "--decoder-embed-dim 16 --decoder-attention-heads 1 "
                                                               "--tokens-per-sample 16 --save-dir saves --log-file log.jsonl ";
  run(folder, as_member("2001", train + "--max-update 1000000 --save-interval-updates 5 --keep-last 2"), [&](pid_t first) {
    wait_until([&] { return metrics(folder / "log.jsonl", "save").size() >= 2; });
    kill(first, SIGKILL);
  });
  BOOST_TEST(fs::exists(folder / "saves" / "lock"));
  std::size_t saved = metrics(folder / "log.jsonl", "save").back()["step"];
  for (const char* member : {"2002", "2001"}) {
    const Outcome on =
        run(folder, as_member(member, train + "--keep-last 1 --trace trace.json --max-update " + std::to_string(saved += 20)));
    BOOST_TEST(on.code == 0, on.output);
  }
  BOOST_TEST(fs::exists(folder / "saves" / "flight.old" / "rank-00000-of-00001.flight"));
  for (const std::string more : {"a.h5", "b --format safetensors"})
    BOOST_TEST(run(folder, as_member("2002", bin + "fsdp-consolidate saves " + more)).code == 0);
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto mode = static_cast<unsigned>(entry.status().permissions()) & 0777;
    if (const std::string name = entry.path().filename(); name != "text.txt" && name != "output.txt" && name != "errors.txt")
      BOOST_TEST(mode == (entry.is_directory() ? 0775u : 0664u), entry.path());
  }
  // The message names the mode of a file or folder of another user.
  const auto as_other = [&](const std::string& text) {
    const Outcome refused = run(folder, as_member("2002", train + "--max-update 1000"));
    BOOST_TEST(refused.code == 2, refused.output);
    BOOST_TEST(refused.says(text), refused.output);
    BOOST_TEST(!refused.says(".cpp"), refused.output);
  };
  const fs::path newest =
      folder / "saves" / ("step-" + std::string(8 - std::to_string(saved).size(), '0') + std::to_string(saved));
  BOOST_TEST_REQUIRE(chown(newest.c_str(), 2001, 100) == 0);
  fs::permissions(newest, fs::perms(0700));
  as_other(
      "complete.json cannot be accessed (its folder: Permission denied; it belongs to another user and has mode 700); make "
      "the folder");
  fs::permissions(newest, fs::perms(0775));
  BOOST_TEST_REQUIRE(chown((folder / "saves" / "tokens").c_str(), 2001, 100) == 0);
  fs::permissions(folder / "saves" / "tokens", fs::perms(0755));
  std::ofstream(folder / "text.txt") << std::string(4001, 'x');
  as_other(
      ".json cannot be removed (its folder: Permission denied; it belongs to another user and has mode 755); make the folder "
      "writable");
  BOOST_TEST_REQUIRE(chown((folder / "saves").c_str(), 2001, 100) == 0);
  fs::permissions(folder / "saves", fs::perms(0755));
  as_other("written to saves (Permission denied; it belongs to another user and has mode 755); choose another --save-dir");
  fs::permissions(folder / "saves", fs::perms(0775));
  // If a file cannot be written, the message names the file and not its folder.
  fs::permissions(folder / "log.jsonl", fs::perms(0644));
  std::ofstream(folder / "saves" / "lock") << "";
  for (const auto& [member, texts] :
       {std::pair{"2002",
                  "cannot write --log-file 'log.jsonl' (Permission denied; it belongs to another user and has mode 644); make"},
        {"2001",
         "saves/lock cannot be written (Permission denied; it belongs to another user and has mode 644); make it writable"}}) {
    BOOST_TEST(chown((folder / "log.jsonl").c_str(), 2001, 100) == 0);
    const Outcome refused = run(folder, as_member(member, train + "--max-update 1000"));
    BOOST_TEST(refused.code == 2, refused.output);
    BOOST_TEST(refused.says(texts), refused.output);
  }
}

BOOST_AUTO_TEST_CASE(folders_that_may_only_be_read, *boost::unit_test::precondition(permissions_count)) {
  const auto folder = fresh_folder();
  const auto go = [&](int ranks, const std::string& program, const std::vector<std::string>& words) {
    return run(folder, with_permissions(mpirun(ranks, program, words)));
  };
  const std::vector<std::string> same(model.begin(), model.end() - 2);
  const fs::path saves = folder / "saves", step = saves / "step-00000002";
  BOOST_TEST_REQUIRE(go(2, "fsdp-train", plus({tokens, "--save-dir", "saves"}, model)).code == 0);
  for (const fs::path& path : {step, saves}) fs::permissions(path, fs::perms(0555));
  const Outcome refused = go(2, "fsdp-train", plus({tokens, "--save-dir", "saves", "--max-update", "4"}, same));
  BOOST_TEST(refused.code == 2, refused.output);
  BOOST_TEST(refused.says("checkpoints cannot be written to saves (Permission denied); choose another --save-dir"),
             refused.output);
  BOOST_TEST(refused.times_said("fsdp-train: ") == 1u);
  // The other programs can read a read-only save folder.
  for (const char* program : {"fsdp-inspect saves --verify", "fsdp-consolidate saves model.h5 --verify"}) {
    const Outcome read = run(folder, with_permissions(split(std::string(FSDP_BIN) + "/" + program)));
    BOOST_TEST(read.code == 0, read.output);
  }
  for (const char* out : {"saves/model.h5", "saves/below/model.h5"}) {
    const Outcome nowhere = run(folder, with_permissions(split(std::string(FSDP_BIN) + "/fsdp-consolidate saves " + out)));
    BOOST_TEST(nowhere.code == 2, nowhere.output);
    BOOST_TEST(nowhere.says("choose a folder to which you can write"), nowhere.output);
    BOOST_TEST(!nowhere.says("--save-dir"), nowhere.output);
  }
  const Outcome on = go(3, "fsdp-train", plus({tokens, "--save-dir", "new", "--restore", "saves", "--max-update", "4"}, same));
  BOOST_TEST(on.code == 0, on.output);
  BOOST_TEST(fs::exists(folder / "new" / "step-00000004"));
  fs::permissions(saves, fs::perms(0755));
  // The save folder becomes read-only during a run.
  const std::vector<std::string> often = plus({tokens, "--save-dir", "saves", "--save-interval-updates", "1", "--keep-last",
                                               "2", "--max-update", "1000000", "--log-file", "log.jsonl"},
                                              same);
  const Outcome ended = run(folder, with_permissions(mpirun(2, "fsdp-train", often)), [&](pid_t) {
    wait_until([&] { return metrics(folder / "log.jsonl", "save").size() > 3; });
    fs::permissions(saves, fs::perms(0555));
  });
  BOOST_TEST(ended.code == 1, ended.output);
  BOOST_TEST(ended.says("Permission denied"), ended.output);
  BOOST_TEST(ended.times_said("fsdp-train: ") == 1u, ended.output);
  fs::permissions(saves, fs::perms(0755));
  BOOST_TEST(fs::exists(step));  // --keep-last cannot remove it, and leaves it intact
  const std::size_t saved = metrics(folder / "log.jsonl", "save").back()["step"];
  const Outcome again =
      go(2, "fsdp-train",
         plus({tokens, "--save-dir", "saves", "--log-file", "log.jsonl", "--max-update", std::to_string(saved + 2)}, same));
  BOOST_TEST(again.code == 0, again.output);
  BOOST_TEST(metrics(folder / "log.jsonl", "restore").back()["step"].get<std::size_t>() >= saved);
}

BOOST_AUTO_TEST_CASE(a_flipped_byte_is_found) {
  const auto folder = fresh_folder();
  BOOST_TEST_REQUIRE(run(folder, mpirun(3, "fsdp-train", plus({tokens, "--save-dir", "saves"}, model))).code == 0);
  const fs::path file = folder / "saves" / "step-00000002" / "rank-00001-of-00003.h5";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  bytes.seekg(middle);
  const char byte = static_cast<char>(bytes.get());
  bytes.seekp(middle);
  bytes.put(static_cast<char>(byte ^ 1));
  bytes.close();
  expect_failure(
      3, 1, folder,
      plus({tokens, "--save-dir", "saves", "--max-update", "4"}, std::vector<std::string>(model.begin(), model.end() - 2)),
      {"rank-00001-of-00003.h5"});
}
