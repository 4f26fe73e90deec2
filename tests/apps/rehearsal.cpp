// The parts of fsdp-train --rehearse that start nothing.
#include "fsdp-train/rehearsal.hpp"
#include "fsdp-train/stand_ins.hpp"

#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "optim/optimizer.hpp"
#include "plan/sharding.hpp"

using namespace fsdp;

namespace {

/// The options of a command line, for 512 ranks.
TrainOptions parsed(std::vector<const char*> words) {
  words.insert(words.begin(), "fsdp-train");
  return parse_train_command(static_cast<int>(words.size()), words.data(), 512).options;
}

/// The options that the stand-ins read from their command line.
TrainOptions read_again(const TrainOptions& options, int ranks) {
  const std::vector<std::string> words = words_of(options, ranks);
  std::vector<const char*> arguments = {"fsdp-train"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return parse_train_command(static_cast<int>(arguments.size()), arguments.data(), ranks).options;
}

/// All options but one, which follows from others and is not read without --fp16.
std::string text_of(const TrainOptions& options) {
  nlohmann::json all = to_json(options);
  if (options.sharding.types.parameter != DType::f16) all.erase("fp16-scale-window");
  return all.dump(0);
}

StandIns eight() { return {8, 4, 128, "folder", "bytes", "data.bin", ""}; }

}  // namespace

BOOST_AUTO_TEST_CASE(times_of_slurm) {
  const std::pair<const char*, double> known[] = {{"90", 5400},     {"90:30", 5430},     {"2:00:00", 7200},
                                                  {"1-12", 129600}, {"1-12:30", 131400}, {"1-12:30:15", 131415}};
  for (const auto& [text, seconds] : known) BOOST_TEST(slurm_seconds(text) == seconds, text);
  for (const char* wrong : {"", "2h", "1:2:3:4", "-5", "1-", "UNLIMITED", "1 :2"})
    BOOST_CHECK_THROW(slurm_seconds(wrong), UserError);
}

BOOST_AUTO_TEST_CASE(every_architecture_can_be_narrow) {
  for (const auto& [name, description] : list_archs()) {
    const TransformerConfig whole = arch_config(name), narrow = narrow_config(whole, 64);
    BOOST_TEST_CONTEXT(name) {
      BOOST_TEST(narrow.width <= 64u);
      BOOST_TEST(narrow.layers == whole.layers);
      BOOST_TEST(narrow.vocab_size == whole.vocab_size);
      BOOST_TEST((narrow.kv_heads < narrow.heads) == (whole.kv_heads < whole.heads));
      BOOST_TEST((config_from_json(config_to_json(narrow)) == narrow));
    }
  }
  BOOST_TEST(narrow_config(arch_config("gpt2"), 33).width == 32u);
  const TransformerConfig llama = narrow_config(arch_config("llama-3.1-8b"), 64);
  BOOST_TEST(llama.heads == 4u);
  BOOST_TEST(llama.kv_heads == 1u);
  BOOST_TEST(llama.ffn_width == 14336u / 64);
}

BOOST_AUTO_TEST_CASE(groups_of_few_ranks) {
  const auto group = [](int ranks, int shard, int replicate) { return shard_group_of(ranks, {shard, replicate}); };
  BOOST_TEST(group(8, 64, 8) == 4);
  BOOST_TEST(group(8, 2, 256) == 2);
  BOOST_TEST(group(8, 512, 1) == 8);
  BOOST_TEST(group(8, 1, 512) == 1);
  BOOST_TEST(group(6, 4, 3) == 3);
  BOOST_TEST(group(1, 64, 8) == 1);
}

BOOST_AUTO_TEST_CASE(the_options_of_stand_ins_can_be_read) {
  const std::vector<std::vector<const char*>> jobs = {
      {"data.bin", "--arch", "gpt2", "--max-update", "1000", "--warmup-updates", "100", "--total-batch-size", "4096"},
      {"data.bin", "--arch", "llama-3.1-8b", "--max-epoch", "3", "--warmup-ratio", "0.1", "--bf16", "--save-interval", "1h",
       "--keep-last", "2", "--keep-every", "100", "--stop-before", "5min", "--checkpoint-activations"},
      {"data.bin", "--arch", "gpt2", "--max-update", "50", "--save-interval", "auto", "--mtbf", "24h", "--files-per-checkpoint",
       "64", "--stripe", "4:4M"},
      {"data.bin", "--arch", "gpt2", "--max-update", "50", "--fp16", "--lr-scheduler", "wsd", "--decay-updates", "10",
       "--min-lr-ratio", "0.1", "--tensorboard", "events", "--trace", "trace.json", "--seed", "7"},
      {"data.bin", "--arch", "gpt2", "--max-update", "50", "--device", "cuda", "--comm", "nccl", "--sum-order", "library",
       "--offload-activations", "--bf16", "--cpu-offload", "--attention-backend", "auto"},
      {"data.bin", "--arch", "gpt2", "--max-update", "50", "--comm",
       "nccl"},  // then nodes have GPUs, and this machine need not
      {"data.bin", "--arch", "gpt2", "--max-update", "50", "--sharding-strategy", "hybrid", "--shard-group-size", "64",
       "--freeze", "h.0.*", "--lr-scale", "h.1.*=0.5", "--wrap-policy", "size", "--min-num-params", "1M"},
      {"data.bin", "--arch", "gpt2", "--max-update", "50", "--no-save", "--ema-decay", "0.9", "--use-ema"},
      {"data.bin", "--model", "DIR", "--max-update", "50", "--lora-rank", "8", "--lora-targets", "all-linear", "--lora-layers",
       "0,3", "--base-dtype", "nf4"}};
  for (const auto& words : jobs) {
    const TrainOptions job = parsed(words);
    const TrainOptions options = stand_in_options(job, eight(), job.lora, 0.01), again = read_again(options, 8);
    BOOST_TEST(text_of(again) == text_of(options));
    BOOST_TEST(again.max_update == first_updates);
    BOOST_TEST(again.comm.kind == "auto");
    BOOST_TEST(again.total_batch_size == 8 * again.sharding.plan.micro_batches);
    BOOST_TEST(again.sharding.batch.T == 128u);
  }
  for (const Optimizer* optimizer : optimizers()) {
    const std::string name(optimizer->name);
    const TrainOptions job = parsed({"data.bin", "--arch", "gpt2", "--max-update", "50", "--optimizer", name.c_str()});
    const TrainOptions options = stand_in_options(job, eight(), {}, 1);
    BOOST_TEST(text_of(read_again(options, 8)) == text_of(options));
  }
}

BOOST_AUTO_TEST_CASE(the_time_of_a_job) {
  TrainOptions job;
  const JobNeeds needs = {.update_s = 10, .updates = 1000};
  BOOST_TEST(judge_time(job, needs).empty());  // no limit is known
  job.rehearsal.time = "3:00:00";
  BOOST_TEST(judge_time(job, needs).empty());
  job.rehearsal.time = "2:00:00";
  BOOST_TEST(judge_time(job, needs).size() == 1u);
  BOOST_TEST(judge_time(job, {.update_s = {}, .updates = 1000}).empty());  // nothing is predicted
  job.stop_before_s = 600;
  BOOST_TEST(judge_time(job, needs).empty());  // it saves, and is requeued
  job.stop_before_s = 9;
  BOOST_TEST(judge_time(job, needs).size() == 1u);
  job.stop_before_s = 7200;
  BOOST_TEST(judge_time(job, needs).size() == 1u);
}
