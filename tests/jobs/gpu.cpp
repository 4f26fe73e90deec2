// Jobs on one GPU with the real programs. The GPU is a real one, or the double of CUDA that uses threads
// (cuda_double/).
#include <algorithm>
#include <csignal>

#include <boost/test/unit_test.hpp>

#include "families.hpp"
#include "files/checksum.hpp"
#include "jobs/job.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "support/gpu.hpp"

using namespace fsdp::test;

namespace {

struct NeedsGpu {
  NeedsGpu() { gpus_or_skip(1); }
};
BOOST_TEST_GLOBAL_FIXTURE(NeedsGpu);

const char* const name = "gpt2-tied";

/// Runs the golden run up to update `last`.
std::vector<std::string> job(int np, int last, const std::vector<std::string>& more, const std::string& saves = "saves") {
  const auto folder = golden_folder(name);
  const json run = read_json(folder / "run.json");
  std::vector<std::string> words = {"--data",       (folder / "train.bin").string(),
                                    "--model",      folder.string(),
                                    "--optimizer",  "adamw",
                                    "--lr",         run["lr"].dump(),
                                    "--log-file",   "metrics.jsonl",
                                    "--save-dir",   saves,
                                    "--batch-size", std::to_string(12 / np),
                                    "--max-update", std::to_string(last),
                                    "--threads",    "1"};
  words.insert(words.end(), {"--tokens-per-sample", run["tokens_per_sample"].dump()});
  if (std::find(more.begin(), more.end(), "--lr-scheduler") == more.end())
    words.insert(words.end(), {"--lr-scheduler", "fixed"});
  words.insert(words.end(), more.begin(), more.end());
  return mpirun(np, "fsdp-train", words);
}

std::vector<double> losses(const fs::path& folder) {
  std::vector<double> all;
  for (const json& line : metrics(folder / "metrics.jsonl", "train")) all.push_back(line["loss"]);
  return all;
}

}  // namespace

// Prompts use the attention over whole sequences, in steps of 512 tokens. New tokens use the attention of single
// tokens.
BOOST_AUTO_TEST_CASE(texts_are_those_of_the_cpu) {
  const auto folder = fresh_folder();
  for (const char* const family : {"opt", "qwen3"}) {
    json one = family_case(family);
    one["config"]["vocab_size"] = 256;
    one["config"]["max_position_embeddings"] = 700;
    write_formula_model(folder / family, one["config"]);
    std::ofstream(folder / "prompts.txt") << "ab\nsomething\nlonger prompt\n" << std::string(600, 'c') << "\n";
    const std::string ask = std::string(family) + " --prompts prompts.txt --json --temperature 0 --max-new-tokens 20 --device ";
    const Outcome cpu = run(folder, mpirun(1, "fsdp-generate", split(ask + "cpu"))),
                  gpu = run(folder, mpirun(1, "fsdp-generate", split(ask + "cuda"))),
                  gpus = run(folder, mpirun(2, "fsdp-generate", split(ask + "cuda"))),
                  low = run(folder, mpirun(1, "fsdp-generate", split(ask + "cuda --bf16")));
    BOOST_TEST_REQUIRE(cpu.code == 0, cpu.output);
    BOOST_TEST(gpu.output == cpu.output);
    BOOST_TEST(gpus.output == cpu.output);
    BOOST_TEST(low.code == 0, low.output);
  }
}

// A checkpoint from a GPU can be resumed on a CPU, and vice versa.
BOOST_AUTO_TEST_SUITE(a_run_moves_between_devices)

/// Returns the folder of a run that has moved. The first case starts its jobs.
const fs::path& moved_run() {
  static const fs::path moved = [] {
    const auto folder = fresh_folder();
    const struct {
      int np, last;
      std::vector<std::string> options;
    } legs[] = {{2, 2, {"--device", "cuda", "--offload-params", "cpu"}},
                {3, 4, {"--device", "cpu"}},
                {1, 5, {"--device", "auto", "--checkpoint-activations"}},
                {2, 6, {"--device", "cuda", "--comm", "mpi", "--sharding-strategy", "none"}}};
    for (const auto& leg : legs) {
      const Outcome part = run(folder, job(leg.np, leg.last, leg.options));
      BOOST_TEST_REQUIRE(part.code == 0, part.output);
      BOOST_TEST(part.says("cuBLASLt") == (leg.options[1] != "cpu"), part.output);
      BOOST_TEST(part.says("on the host per rank") == (leg.last == 2), part.output);
    }
    return folder;
  }();
  return moved;
}

BOOST_AUTO_TEST_CASE(the_loss_continues_as_on_one_device) {
  const std::vector<double> got = losses(moved_run());
  const auto folder = moved_run() / "whole";
  fs::create_directories(folder);
  const Outcome whole = run(folder, job(1, 6, {"--device", "cpu"}));
  BOOST_TEST_REQUIRE(whole.code == 0, whole.output);
  const std::vector<double> expected = losses(folder);
  BOOST_TEST_REQUIRE(got.size() == expected.size());
  for (std::size_t u = 0; u < got.size(); ++u) BOOST_TEST(std::abs(got[u] - expected[u]) < 2e-6, got[u] << " " << expected[u]);
}

BOOST_AUTO_TEST_CASE(its_checkpoint_is_sound) {
  const Outcome inspected = run(moved_run(), mpirun(1, "fsdp-inspect", {"saves/step-00000006", "--verify"}));
  BOOST_TEST(inspected.code == 0, inspected.output);
}

BOOST_AUTO_TEST_CASE(its_checkpoint_has_the_same_loss_on_both_devices) {
  const auto evaluate = [&](int np, const char* device) {
    const Outcome outcome = run(moved_run(), mpirun(np, "fsdp-evaluate",
                                                    {"saves", (golden_folder(name) / "train.bin").string(), "--json",
                                                     "--device", device, "--tokens-per-sample", "32", "--threads", "1"}));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return json::parse(outcome.output.substr(outcome.output.find('{')))["loss"].get<double>();
  };
  BOOST_TEST(std::abs(evaluate(2, "cuda") - evaluate(1, "cpu")) < 2e-6);
}

BOOST_AUTO_TEST_SUITE_END()

// PyTorch's golden run, on one rank with NCCL, and on ranks that share the GPU: through the host, or by NCCL if
// FSDP_NCCL_SHARED_GPU is set. The double is slow, so only the beginning runs there.
BOOST_AUTO_TEST_CASE(golden_losses_by_processes) {
  const json golden = read_json(golden_folder(name) / "run.json");
  const int updates = wants_real_gpu() ? 20 : 6;
  const std::vector<std::string> schedule = {"--total-batch-size",  "12",
                                             "--total-num-update",  golden["updates"].dump(),
                                             "--lr-scheduler",      "polynomial_decay",
                                             "--end-learning-rate", golden["end_lr"].dump(),
                                             "--warmup-updates",    golden["warmup"].dump(),
                                             "--clip-norm",         golden["clip_norm"].dump(),
                                             "--weight-decay",      golden["weight_decay"].dump(),
                                             "--adam-betas",        "(0.9,0.95)"};
  for (const int np : {1, 2, 4}) {
    const bool by_nccl = np == 1 || shares_gpu();
    if (shares_gpu() && np > ranks_of_nccl(4)) continue;
    const auto folder = fresh_folder();
    std::vector<std::string> words = schedule;
    words.insert(words.end(), {"--device", "cuda", "--comm", by_nccl ? "nccl" : "mpi"});
    const Outcome outcome = run(folder, job(np, updates, words));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    BOOST_TEST(outcome.says(by_nccl ? "collectives of GPUs: NCCL" : "through host memory"), outcome.output);
    const std::vector<double> got = losses(folder);
    BOOST_TEST_REQUIRE(got.size() == static_cast<std::size_t>(updates));
    for (std::size_t u = 0; u < got.size(); ++u)
      BOOST_TEST(std::abs(got[u] - golden["steps"][u]["loss"].get<double>()) < 5e-6, np << " ranks, update " << u + 1);
  }
}

// With offloading, gradients of several micro-batches are summed on the host, a save reads state on the host or in the file,
// and the run can be resumed without offloading.
BOOST_AUTO_TEST_CASE(offloading_changes_no_bit) {
  const auto train = [&](const fs::path& folder, int last, const std::string& more) {
    fs::create_directories(folder);
    std::vector<std::string> words = job(2, last, split("--device cuda --comm mpi --bf16 --update-freq 2 " + more));
    *std::next(std::find(words.begin(), words.end(), "--batch-size")) = "3";
    const Outcome outcome = run(folder, words);
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    return losses(folder);
  };
  for (const std::string strategy : {"full", "none"}) {
    const std::string with_strategy = "--sharding-strategy " + strategy;
    const std::vector<double> expected = train(fresh_folder() / "kept", 6, with_strategy);
    const std::string in_a_file = " --offload-params nvme --nvme-path " + fs::current_path().string();
    for (const std::string& offload :
         {std::string(" --cpu-offload"), std::string(" --offload-optimizer cpu"), in_a_file + " --offload-activations"}) {
      const auto folder = fresh_folder() / "offloaded";
      train(folder, 2, with_strategy + offload);
      train(folder, 4, with_strategy);
      BOOST_TEST(train(folder, 6, with_strategy + offload) == expected, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(more_than_the_memory_is_refused) {
  const auto folder = fresh_folder();
  const Outcome outcome =
      run(folder, mpirun(1, "fsdp-train",
                         {(golden_folder(name) / "train.bin").string(), "--arch", "llama-3.1-405b", "--tokens-per-sample", "16",
                          "--batch-size", "1", "--max-update", "1", "--restore", "none", "--device", "cuda"}));
  BOOST_TEST(outcome.code == 2, outcome.output);
  BOOST_TEST(outcome.times_said("of GPU memory could not be allocated (") == 1u, outcome.output);
  BOOST_TEST(outcome.says(" are free); use more ranks"), outcome.output);
}

// Environment variables remove features of the double and set its name.
BOOST_AUTO_TEST_SUITE(double_alone)

BOOST_AUTO_TEST_CASE(mfu_is_of_the_datasheets_peak) {
  for (const std::string product : {"", "NVIDIA H100 80GB HBM3"}) {
    const auto folder = fresh_folder();
    std::vector<std::string> command = {"env", "FSDP_CUDA_DOUBLE_NAME=" + product};
    const std::vector<std::string> words = job(1, 2, {"--device", "cuda", "--log-interval", "1"});
    command.insert(command.end(), words.begin(), words.end());
    const Outcome outcome = run(folder, command);
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const auto lines = metrics(folder / "metrics.jsonl", "train");
    BOOST_TEST_REQUIRE(lines.size() == 2u);
    for (const json& line : lines) {
      BOOST_TEST(line["mfu"].is_null() == product.empty(), line.dump());
      if (product.empty()) continue;
      // 6 FLOPs per token and matrix element, and a few percent for attention, relative to a peak of 67 TFLOP/s in
      // fp32.
      const double of_matrices = 6 * (3 * 12 * 48 * 48 + 211 * 48) * line["wps"].get<double>() / 67e12, mfu = line["mfu"];
      BOOST_TEST((mfu > of_matrices && mfu < 1.1 * of_matrices), line.dump());
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_said) {
  const auto folder = fresh_folder();
  int attempts = 0;
  const auto expect = [&](const std::vector<std::string>& environment, const char* device,
                          const std::vector<std::string>& texts) {
    const fs::path fresh = folder / std::to_string(attempts++);
    std::vector<std::string> command = {"env"};
    command.insert(command.end(), environment.begin(), environment.end());
    const std::vector<std::string> words = job(2, 1, {"--device", device}, fresh.string());
    command.insert(command.end(), words.begin(), words.end());
    const Outcome outcome = run(folder, command);
    BOOST_TEST(outcome.code == (texts.empty() ? 0 : 2), outcome.output);
    for (const std::string& text : texts) BOOST_TEST(outcome.says(text), text << " in " << outcome.output);
    BOOST_TEST(outcome.times_said("fsdp-train: ") == (texts.empty() ? 0 : 1), outcome.output);
  };
  const std::string none = "FSDP_CUDA_LIBRARY=/nowhere/libfsdp_cuda.so", no_gpu = "FSDP_CUDA_DOUBLE_DEVICES=0";
  expect({none}, "cuda", {"--device cuda finds no GPU (/nowhere/libfsdp_cuda.so: cannot open", "--device cpu"});
  expect({no_gpu}, "cuda", {"finds no GPU (no CUDA-capable device is detected)"});
  // A GPU that is too old cannot be used. If there are several GPUs, those that can be used are.
  const std::string old = "FSDP_CUDA_DOUBLE_CAPABILITIES=75", volta = "FSDP_CUDA_DOUBLE_NAME=Tesla V100";
  expect({old, volta}, "cuda", {"finds no GPU (Tesla V100 has compute capability 7.5, and fsdp needs 8.0 or later"});
  expect({old, volta, "SLURM_JOB_GPUS=0"}, "auto", {"none of them can be used (Tesla V100 has compute capability 7.5"});
  expect({"FSDP_CUDA_DOUBLE_CAPABILITIES=75,80", "FSDP_CUDA_DOUBLE_DEVICES=2"}, "cuda", {});
  expect({no_gpu, "SLURM_JOB_GPUS=0,1"}, "auto", {"the job has GPUs (SLURM_JOB_GPUS=0,1)", "no CUDA-capable device"});
  expect({no_gpu, "SLURM_STEP_GPUS=0"}, "auto", {"the job has GPUs (SLURM_STEP_GPUS=0)"});  // the number of a GPU
  expect({no_gpu, "SLURM_GPUS_ON_NODE=0"}, "auto", {});                                     // a count: no GPU
  expect({"FSDP_CUDA_DOUBLE_MEMORY=34000000"}, "cuda", {"of GPU memory could not be allocated", "--checkpoint-activations"});
}

// The memory that is free on the GPU decides which blocks are recomputed.
BOOST_AUTO_TEST_CASE(recomputed_blocks_are_chosen_by_the_memory_of_the_gpu) {
  const auto start = [](const std::string& bytes) {
    std::vector<std::string> command = {"env", "FSDP_CUDA_DOUBLE_MEMORY=" + bytes};
    const std::vector<std::string> words = job(1, 2, {"--device", "cuda", "--bf16", "--recompute-num-layers", "auto"});
    command.insert(command.end(), words.begin(), words.end());
    return run(fresh_folder(), command);
  };
  const Outcome enough = start("4000000000"), little = start("1000000000");
  BOOST_TEST(enough.code == 0, enough.output);
  BOOST_TEST(enough.says("--recompute-num-layers auto: 0 of "), enough.output);
  BOOST_TEST(little.code != 0);
  BOOST_TEST(little.says("even if all blocks are recomputed, and "), little.output);
  BOOST_TEST(little.says("are free; use more ranks, a smaller --batch-size or --tokens-per-sample"), little.output);
}

// With this variable the double's cuBLASLt has no algorithm for 16-bit matrices with misaligned rows, for which the real one
// has only slow ones. The vocabulary has 211 tokens.
BOOST_AUTO_TEST_CASE(logits_of_an_odd_vocabulary_are_aligned) {
  std::vector<std::string> command = {"env", "FSDP_CUDA_DOUBLE_ALIGNED=1"};
  const std::vector<std::string> words = job(1, 2, {"--device", "cuda", "--bf16"});
  command.insert(command.end(), words.begin(), words.end());
  const Outcome outcome = run(fresh_folder(), command);
  BOOST_TEST(outcome.code == 0, outcome.output);
}

// An L40S has 99 KiB of shared memory for a block, an A100 has 163.
BOOST_AUTO_TEST_CASE(heads_that_need_more_shared_memory_are_refused_at_the_start) {
  for (const bool fits : {true, false}) {
    std::vector<std::string> command = {"env", std::string("FSDP_CUDA_DOUBLE_CAPABILITIES=") + (fits ? "80" : "89")};
    const std::vector<std::string> words =
        mpirun(2, "fsdp-train",
               {(golden_folder(name) / "train.bin").string(), "--arch", "gpt2", "--vocab-size", "211", "--decoder-layers", "1",
                "--decoder-embed-dim", "184", "--decoder-attention-heads", "1", "--tokens-per-sample", "16", "--batch-size",
                "1", "--max-update", "1", "--device", "cuda"});
    command.insert(command.end(), words.begin(), words.end());
    const Outcome outcome = run(fresh_folder(), command);
    BOOST_TEST(outcome.code == (fits ? 0 : 2), outcome.output);
    BOOST_TEST(outcome.times_said("heads of 184 numbers in fp32 need ") == (fits ? 0u : 1u), outcome.output);
    BOOST_TEST(outcome.says("train on the CPU, or in bf16") == false, outcome.output);  // 184 is more than tensor cores take
  }
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

/// The job for `np` ranks with 12 micro-batches of one sequence, so that all numbers of ranks have the same products.
std::vector<std::string> timed(int np, int last, const std::vector<std::string>& more, const std::string& variable = "A=0") {
  std::vector<std::string> options = {"--device", "cuda", "--invariant", "--update-freq", std::to_string(12 / np)};
  options.insert(options.end(), more.begin(), more.end());
  std::vector<std::string> words = {"env", variable};
  for (const std::string& word : job(np, last, options)) words.push_back(word);
  *(std::find(words.begin(), words.end(), "--batch-size") + 1) = "1";
  return words;
}

Outcome run_in(const fs::path& folder, const std::string& part, const std::vector<std::string>& words) {
  fs::create_directories(folder / part);
  return run(folder / part, words);
}

// The double has two algorithms for each product, which add in other orders. A variable makes one of them slow.
const std::string first_is_slow = "FSDP_CUDA_DOUBLE_SLOW_ALGORITHM=0", second_is_slow = "FSDP_CUDA_DOUBLE_SLOW_ALGORITHM=1";

}  // namespace

BOOST_AUTO_TEST_SUITE(double_alone)  // continued
BOOST_AUTO_TEST_SUITE(timed_algorithms)

const std::vector<std::string> by_table = {"--gemm-algorithms", "../table"};
const std::string same_bits = "will not have the same bits";

BOOST_AUTO_TEST_CASE(a_table_gives_the_same_bits) {
  const auto folder = fresh_folder();
  const Outcome made = run_in(folder, "1", timed(1, 4, by_table, first_is_slow));
  BOOST_TEST_REQUIRE(made.code == 0, made.output);
  const std::string table = read_file(folder / "table");
  BOOST_TEST(table.find("made on GPU made of threads") != std::string::npos, table);
  const std::vector<double> expected = losses(folder / "1");
  BOOST_TEST(expected.size() == 4u);
  for (const int np : {2, 4}) {  // nothing is timed: the other algorithm would be faster now
    const std::string name = std::to_string(np);
    const Outcome more = run_in(folder, name, timed(np, 4, by_table, second_is_slow));
    BOOST_TEST(more.code == 0, more.output);
    BOOST_TEST(losses(folder / name) == expected, boost::test_tools::per_element());
  }
  BOOST_TEST(run_in(folder, "own", timed(1, 4, {})).code == 0);
  BOOST_TEST((losses(folder / "own") != expected));
  for (const int last : {2, 4}) {
    const Outcome part = run_in(folder, "resumed", timed(1, last, by_table, second_is_slow));
    BOOST_TEST(part.code == 0, part.output);
    BOOST_TEST(!part.says(same_bits), part.output);
  }
  BOOST_TEST(losses(folder / "resumed") == expected, boost::test_tools::per_element());
  BOOST_TEST(read_file(folder / "table") == table);
  // A resume without the table, then one with another table.
  const Outcome without = run_in(folder, "resumed", timed(1, 5, {}));
  BOOST_TEST(without.says(same_bits), without.output);
  BOOST_TEST(without.says("without a file of algorithms now"), without.output);
  const Outcome with_another = run_in(folder, "1", timed(1, 5, {"--gemm-algorithms", "other"}, second_is_slow));
  BOOST_TEST(with_another.says(same_bits), with_another.output);
  // Another batch has other products, which are added.
  std::vector<std::string> words = timed(1, 1, by_table);
  *(std::find(words.begin(), words.end(), "--batch-size") + 1) = "2";
  const Outcome larger = run_in(folder, "larger", words);
  BOOST_TEST(larger.code == 0, larger.output);
  BOOST_TEST(read_file(folder / "table").size() > table.size());
}

BOOST_AUTO_TEST_CASE(a_wrong_table_is_refused) {
  const auto folder = fresh_folder();
  BOOST_TEST_REQUIRE(run_in(folder, "1", timed(1, 1, by_table)).code == 0);
  const std::string table = read_file(folder / "table");
  const auto refused = [&](const std::string& text, const std::string& why, const std::string& variable = "A=0") {
    std::ofstream(folder / "table") << text;
    const Outcome outcome = run_in(folder, "refused", timed(2, 1, by_table, variable));
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.times_said(why) == 1u, outcome.output);
    BOOST_TEST(read_file(folder / "table") == text);
  };
  refused(table, "it was made on GPU made of threads", "FSDP_CUDA_DOUBLE_NAME=Another GPU");
  refused(table.substr(0, table.size() / 2), "its checksum is wrong");
  refused("", "it does not begin like a file of GEMM algorithms");
  std::string edited = table;
  edited[edited.find("aligned 16: ") + 12] ^= 1;
  refused(edited, "its checksum is wrong");
  const auto begin = edited.rfind("checksum ");
  edited = edited.substr(0, begin) + "checksum " + fsdp::checksum_text(fsdp::checksum(edited.data(), begin)) + "\n";
  refused(edited, "cannot use the algorithm for a product");
  const Outcome unwritable = run_in(folder, "refused", timed(1, 1, {"--gemm-algorithms", "missing/table"}));
  BOOST_TEST(unwritable.code != 0);
  BOOST_TEST(unwritable.says("missing"), unwritable.output);
  for (const bool dry : {false, true}) {
    std::vector<std::string> options = {"--gemm-algorithms", "table", "--device", "cpu"};
    if (dry) options.push_back("--dry-run");
    const Outcome on_cpu = run_in(folder, "refused", job(2, 1, options));
    BOOST_TEST(on_cpu.code == 2, on_cpu.output);
    BOOST_TEST(on_cpu.times_said("--gemm-algorithms needs a GPU") == 1u, on_cpu.output);
  }
  // A dry run times nothing.
  BOOST_TEST(run_in(folder, "dry", timed(1, 1, {"--gemm-algorithms", "table", "--dry-run"})).code == 0);
  BOOST_TEST(!fs::exists(folder / "dry/table"));
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(bias_gelu_fusion)

const std::string fusion = "--bias-gelu-fusion";

/// Losses may differ by 5e-3 in bf16, as in run.golden_on_gpu, and norms of gradients by 5e-3 of their size. They do differ.
void are_close(const fs::path& a, const fs::path& b) {
  BOOST_TEST_REQUIRE(losses(a).size() == 2u);
  BOOST_TEST((losses(a) != losses(b)));
  const auto in_a = metrics(a / "metrics.jsonl", "train"), in_b = metrics(b / "metrics.jsonl", "train");
  BOOST_TEST_REQUIRE(in_a.size() == in_b.size());
  for (std::size_t i = 0; i < in_a.size(); ++i) {
    const double norm = in_a[i]["gnorm"], loss = in_a[i]["loss"];
    BOOST_TEST(std::abs(double(in_b[i]["loss"]) - loss) < 5e-3);
    BOOST_TEST(std::abs(double(in_b[i]["gnorm"]) - norm) < 5e-3 * norm);
  }
}

BOOST_AUTO_TEST_CASE(the_loss_is_within_bounds_and_repeatable) {
  const auto folder = fresh_folder();
  const auto train = [&](const std::string& part, int np, int last, std::vector<std::string> more,
                         const std::string& variable = "A=0") {
    more.push_back("--bf16");
    std::vector<std::string> words = timed(np, last, more, variable);
    if (part.ends_with("added")) std::erase(words, "--invariant");
    const Outcome outcome = run_in(folder, part, words);
    BOOST_TEST(outcome.code == 0, outcome.output);
    return outcome;
  };
  train("own", 1, 2, {});
  train("fused", 1, 2, {fusion});
  const std::vector<double> own = losses(folder / "own"), fused = losses(folder / "fused");
  are_close(folder / "own", folder / "fused");
  // Without --invariant, the gradients of a micro-batch are added to those of earlier ones.
  train("own, added", 1, 2, {});
  train("fused, added", 1, 2, {fusion});
  are_close(folder / "own, added", folder / "fused, added");
  for (const int np : {2, 4}) {
    train(std::to_string(np), np, 2, {fusion});
    BOOST_TEST(losses(folder / std::to_string(np)) == fused, boost::test_tools::per_element());
  }
  train("blocks again", 1, 2, {fusion, "--checkpoint-activations"});
  BOOST_TEST(losses(folder / "blocks again") == fused, boost::test_tools::per_element());
  train("GELU again", 1, 2, {fusion, "--checkpoint-activations", "--checkpoint-policy", "selective"});
  BOOST_TEST(losses(folder / "GELU again") == fused, boost::test_tools::per_element());
  // A resume has the same bits, and reports a changed option.
  const std::string changed = "changed options: --bias-gelu-fusion is ";
  train("resumed", 2, 1, {fusion});
  BOOST_TEST(!train("resumed", 1, 2, {fusion}).says(changed));
  BOOST_TEST(losses(folder / "resumed") == fused, boost::test_tools::per_element());
  BOOST_TEST(train("resumed", 1, 3, {}).times_said(changed + "false now and was true") == 1u);
  if (wants_real_gpu()) return;
  // A library without epilogues: the row kernels compute the same as without the option.
  train("row kernels", 1, 2, {fusion}, "FSDP_CUDA_DOUBLE_EPILOGUES=0");
  BOOST_TEST(losses(folder / "row kernels") == own, boost::test_tools::per_element());
  // Their algorithms are timed, too.
  train("timed", 1, 2, {fusion, "--gemm-algorithms", "table"}, second_is_slow);
  BOOST_TEST(losses(folder / "timed") == fused, boost::test_tools::per_element());
  const std::string table = read_file(folder / "timed/table");
  for (const char* epilogue : {" and bias: ", " and GELU's gradient: ", " and sums of b: "})
    BOOST_TEST(table.find(epilogue) != std::string::npos, epilogue << " in " << table);
}

// fairseq's models have weights [out, in], and separate biases of queries, keys and values.
BOOST_AUTO_TEST_CASE(models_of_fairseq) {
  for (const char* activation : {"relu", "gelu"}) {
    const auto folder = fresh_folder();
    const auto train = [&](const std::string& part, int np, std::vector<std::string> more) {
      more.insert(more.end(), {"--bf16", "--arch", "transformer_lm_gpt3_small", "--decoder-layers", "2", "--decoder-embed-dim",
                               "32", "--decoder-attention-heads", "4", "--vocab-size", "512", "--activation-fn", activation});
      std::vector<std::string> words = timed(np, 2, more);
      const auto model = std::find(words.begin(), words.end(), "--model");
      words.erase(model, model + 2);
      const Outcome outcome = run_in(folder, part, words);
      BOOST_TEST(outcome.code == 0, outcome.output);
      return losses(folder / part);
    };
    train("own", 1, {});
    const std::vector<double> fused = train("fused", 1, {fusion});
    are_close(folder / "own", folder / "fused");
    BOOST_TEST(train("two", 2, {fusion}) == fused, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(is_refused_where_it_changes_nothing) {
  const auto folder = fresh_folder();
  int attempts = 0;
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    more.push_back(fusion);
    std::vector<std::string> words = job(2, 1, more);
    if (why.find("model") != std::string::npos)
      *(std::find(words.begin(), words.end(), "--model") + 1) = golden_folder("llama-gqa").string();
    const Outcome outcome = run_in(folder, std::to_string(attempts++), words);
    BOOST_TEST(outcome.code == 2, outcome.output);
    BOOST_TEST(outcome.times_said("--bias-gelu-fusion changes nothing (" + why) == 1u, outcome.output);
  };
  refused({"--device", "cpu", "--bf16"}, "it is for GPUs); give --device cuda, or leave it out");
  refused({"--device", "cpu", "--bf16", "--dry-run"}, "it is for GPUs); give --device cuda, or leave it out");
  refused({"--device", "cuda"}, "it is for bf16 and fp16); leave it out");
  refused({"--device", "cuda", "--bf16"}, "each projection of this model has no bias, or an adapter, or ");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(a_killed_rank_ends_the_job) {
  const auto folder = fresh_folder();
  bool killed = false;
  const Outcome outcome = run(folder, job(2, 100000, {"--device", "cuda", "--log-interval", "1"}), [&](pid_t launcher) {
    wait_until([&] { return losses(folder).size() >= 2; });
    std::ifstream children("/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) + "/children");
    pid_t first = 0;
    children >> first;
    if (first > 0) killed = kill(first, SIGKILL) == 0;
  });
  BOOST_TEST_REQUIRE(killed);
  BOOST_TEST(outcome.code != 0, outcome.output);
}
