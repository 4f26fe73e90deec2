// estimate_memory() is fsdp-plan's account of the same model and options, and the account of the job that allocates it.
#include "mpi_main.hpp"

#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "fsdp-plan/plan_table.hpp"
#include "kernels/threads.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::string base = golden_folder("llama-gqa").string();
constexpr std::size_t length = 16, rows = 2 * length;

struct Way {
  const char* strategy;
  bool recompute = false;
  const char *type = "fp32", *base_type = nullptr;  // base_type "": adapters over a base that is not quantized
  std::size_t micro_batches = 1;
  bool offload = false;
  const char* recompute_layers = "0";
  std::size_t memory_limit = 0;
};
const std::vector<Way> ways = {{"FULL_SHARD"},
                               {"SHARD_GRAD_OP", true},
                               {"NO_SHARD", false, "bf16"},
                               {"HYBRID_SHARD", true, "bf16", nullptr, 3},
                               {"FULL_SHARD", false, "fp16", nullptr, 1, true},
                               {"FULL_SHARD", false, "bf16", ""},
                               {"SHARD_GRAD_OP", true, "fp32", "nf4"},
                               {"FULL_SHARD", false, "bf16", nullptr, 5},
                               {"NO_SHARD", false, "fp32", nullptr, 1, false, "1"},
                               {"FULL_SHARD", false, "bf16", nullptr, 2, false, "auto", std::size_t{1} << 40}};

TransformerDescription model_of(const Way& way) {
  auto model = TransformerDescription::from_config(base);
  if (way.base_type) model.lora({.rank = 3, .targets = {"q_proj", "down_proj"}});
  if (way.base_type && *way.base_type) model.base_dtype(way.base_type);
  return model;
}

FsdpOptions options_of(const Way& way) {
  const bool is_hybrid = std::string(way.strategy) == "HYBRID_SHARD";
  return {.batch_size = 2,
          .sequence_length = length,
          .gradient_accumulation_steps = way.micro_batches,
          .sharding_strategy = way.strategy,
          .shard_group_size = is_hybrid ? 2 : 0,
          .param_dtype = way.type,
          .activation_checkpointing = way.recompute,
          .recompute_num_layers = way.recompute_layers,
          .memory_limit = way.memory_limit,
          .offload_parameters = way.offload ? "cpu" : "none"};
}

/// The account of fsdp-plan for the strategy and recomputation of `way`.
MemoryAccount planned(const Way& way, int ranks, const std::string& device, int threads) {
  std::vector<std::string> words = {"fsdp-plan", "--model", base, "--nodes", "1", "--batch-size", "2"};
  const auto add = [&](const std::string& option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("--ranks-per-node", std::to_string(ranks)), add("--device", device), add("--threads", std::to_string(threads));
  add("--tokens-per-sample", std::to_string(length)), add("--update-freq", std::to_string(way.micro_batches));
  add("--sharding-strategy", way.strategy), add("--precision", way.type);
  add("--recompute-num-layers", way.recompute_layers);
  if (way.memory_limit > 0) add("--memory-limit", std::to_string(way.memory_limit));
  if (std::string(way.strategy) == "HYBRID_SHARD") add("--shard-group-size", "2");
  if (way.base_type) add("--lora-rank", "3"), add("--lora-targets", "q_proj,down_proj");
  if (way.base_type && *way.base_type) add("--base-dtype", way.base_type);
  if (way.offload && device == "cuda") add("--offload-params", "cpu");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  PlanTableOptions options;
  plan_option_table(options).parse(static_cast<int>(argv.size()), argv.data());
  return make_plan_table(options).chosen().variant(way.recompute || *way.recompute_layers != '0').memory;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_estimate_is_what_fsdp_plan_says) {
  for (const Way& way : ways)
    for (const auto& [device, ranks] : {std::pair<std::string, int>{"cpu", 4}, {"cuda", 4}, {"cpu", 1}, {"cuda", 1}}) {
      if (ranks == 1 && std::string(way.strategy) == "HYBRID_SHARD") continue;
      const MemoryUse mine = estimate_memory(model_of(way), options_of(way), ranks, device, 3);
      const MemoryAccount theirs = planned(way, ranks, device, 3);
      // The program of a user has a copy of the batches of an update.
      const std::size_t batches = 2 * rows * way.micro_batches * sizeof(std::int32_t);
      BOOST_TEST(mine.total == theirs.total() + (device == "cpu" ? batches : 0), way.strategy << " on " << device);
      std::size_t of_device = 0, of_host = 0;
      for (const auto& [name, bytes] : mine.parts) (name.ends_with(", on the host") ? of_host : of_device) += bytes;
      BOOST_TEST(of_device == mine.total);
      if (device == "cuda") BOOST_TEST(of_host == theirs.on_host() + batches);
      BOOST_TEST((of_host > batches && theirs.offloaded > 0) == (way.offload && device == "cuda"));
    }
}

BOOST_AUTO_TEST_CASE(a_job_allocates_what_was_estimated) {
  Job job;
  for (const Way& way : ways) {
    if (job.size() % 2 != 0 && std::string(way.strategy) == "HYBRID_SHARD") continue;
    FullyShardedDataParallel sharded(job, model_of(way), options_of(way));
    if (way.base_type) sharded.load_full(base);
    StepResult result;
    for (int attempt = 0; attempt < 20 && sharded.updates() == 0; ++attempt)  // fp16 may overflow first
      result = sharded.step(1e-3, [](const Batch& batch) {
        for (std::size_t r = 0; r < rows; ++r) batch.tokens()[r] = batch.labels()[r] = static_cast<std::int32_t>(r);
      });
    const auto threads = static_cast<int>(kernels::threads());
    BOOST_TEST(sharded.memory().total == estimate_memory(model_of(way), options_of(way), job.size(), "cpu", threads).total);
    BOOST_TEST(sharded.memory().parts == estimate_memory(model_of(way), options_of(way), job.size(), "cpu", threads).parts);
    BOOST_TEST(sharded.peak_bytes() == sharded.memory().total, way.strategy);
  }
}
