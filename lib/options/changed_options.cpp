#include "options/changed_options.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/json.hpp"
#include "optim/schedule.hpp"

namespace fsdp {

std::span<const std::string_view> options_that_keep_results() {
  static constexpr std::string_view names[] = {
      // The effect of these options is compared instead: the checkpoint has checksums of the tokens and of the algorithms.
      "gemm-algorithms", "valid", "valid-mask", "tokenizer", "json-field", "chat", "json-format", "json-names", "chat-template",
      "skip-invalid",
      // Options of the model. They need no comparison, because a checkpoint of another model is refused.
      "arch", "model", "init", "decoder-layers", "decoder-embed-dim", "decoder-ffn-embed-dim", "decoder-attention-heads",
      "decoder-kv-heads", "vocab-size", "share-decoder-input-output-embed", "decoder-learned-pos", "no-scale-embedding",
      "activation-fn", "add-tokens", "add-special-tokens", "new-token-init", "pad-vocab-to", "lora-rank", "lora-alpha",
      "lora-targets", "use-rslora", "lora-rank-pattern", "lora-alpha-pattern", "lora-layers", "modules-to-save", "adapter",
      "base-dtype",
      // Options for how the sequences of --total-batch-size are divided among ranks and micro-batches.
      "batch-size", "update-freq",
      // The end of the run.
      "max-update", "stop-before",
      // Options for which rank stores and computes what, and when.
      "sharding-strategy", "shard-group-size", "wrap-policy", "wrap-layers", "min-num-params", "wrap-units",
      "backward-prefetch", "forward-prefetch", "limit-all-gathers", "accumulate-unsharded", "invariant", "ignore-params",
      "checkpoint-activations", "checkpoint-policy", "checkpoint-every", "recompute-num-layers", "offload-activations",
      "cpu-offloading-num-layers", "offload-params", "offload-optimizer", "nvme-path", "device",
      "attention-backend",  // a resumed run compares the library that is used
      "comm", "sum-order", "sum-staging", "collective-timeout", "comm-thread", "threads",
      // Checkpoints, and the starting point of this run.
      "save-dir", "no-save", "save-interval-updates", "save-interval-epochs", "save-interval", "mtbf", "no-async-save",
      "compress", "files-per-checkpoint", "stripe", "keep-last", "keep-every", "restore", "decay-from", "keep-best",
      "finetune-from", "ignore-missing", "reset-optimizer", "reset-dataloader", "no-verify",
      // Output.
      "log-interval", "log-format", "log-file", "tensorboard", "no-report", "log-group-norms", "validate-interval-updates",
      "validate-interval-epochs", "max-valid-steps", "eval-on-start", "early-stopping", "sample-interval-updates",
      "sample-prompt", "use-ema", "trace", "trace-updates", "dry-run", "measured"};
  return names;
}

namespace {

constexpr std::array of_schedule = {
    "lr",           "lr-scheduler", "warmup-updates", "warmup-ratio", "total-num-update", "decay-updates", "end-learning-rate",
    "min-lr-ratio", "power",        "num-cycles"};

/// Returns false if `option` has no effect with the current values of the other options.
bool is_read(const std::string& option, const TrainOptions& now) {
  if (option == "total-num-update") return has_end(now.schedule) || now.warmup_ratio > 0;
  if (option == "max-epoch") return has_end(now.schedule) && now.schedule.total == 0;
  if (option == "fp16-init-scale") return now.reset_optimizer;  // else the checkpoint has the scale
  if (option == "fp16-scale-window") return now.sharding.types.parameter == DType::f16;
  return true;
}

std::string text_of(const nlohmann::json& value) {
  return value.is_null() ? "unset" : value.is_string() ? excerpt(value.get<std::string>()) : json_text(value);
}

/// The schedule that `options`, from to_json(), describe. If they do not have its end, that is `end`, or unknown if `end` is 0:
/// then the result is empty.
std::optional<Schedule> schedule_of(const nlohmann::json& options, std::uint64_t end = 0) {
  std::vector<std::string> words = {"fsdp-train"};
  for (const char* name : of_schedule)
    if (options.contains(name) && !options[name].is_null() && options[name] != nlohmann::json(0))
      words.push_back(format("--{}={}", name, text_of(options[name])));
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  TrainOptions found;
  try {
    train_option_table(found, 1).parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const UserError&) {
    return {};
  }
  if (has_end(found.schedule) && found.schedule.total == 0) found.schedule.total = end;
  if (found.warmup_ratio > 0) found.schedule.warmup = warmup_of(found.warmup_ratio, found.schedule.total);
  if (has_end(found.schedule) && found.schedule.total == 0) return {};
  return found.schedule;
}

std::string rate_text(double rate) { return rate == 0 ? "0" : format("{:.2e}", rate); }

/// Returns " (the rate was 0 at update 6 and is 3.71e-04 at update 7)"; empty if the rates are unknown.
std::string effect_on_rate(const std::optional<Schedule>& earlier, const std::optional<Schedule>& later, std::uint64_t update) {
  if (!earlier || !later || update == 0) return "";
  return format(" (the rate was {} at update {} and is {} at update {})", rate_text(learning_rate(*earlier, update)), update,
                rate_text(learning_rate(*later, update + 1)), update + 1);
}

}  // namespace

std::string describe_changed_options(const nlohmann::json& before, const TrainOptions& options, std::uint64_t update) {
  if (!before.is_object()) return "";
  const nlohmann::json now = to_json(options);
  const auto kept = options_that_keep_results();
  std::string changed;
  bool changes_rate = false;
  for (const auto& [name, value] : now.items()) {
    if (std::find(kept.begin(), kept.end(), name) != kept.end() || !before.contains(name) || before[name] == value ||
        !is_read(name, options))
      continue;
    const bool follows = name == "total-num-update" && value == now["max-update"];
    const char* const how = follows ? " (by --max-update)" : name == "max-epoch" ? " (at its end the decay ends)" : "";
    changed +=
        format("{}--{}{} is {} now and was {}", changed.empty() ? "" : ", ", name, how, text_of(value), text_of(before[name]));
    changes_rate |= std::find(of_schedule.begin(), of_schedule.end(), name) != of_schedule.end();
  }
  if (changed.empty()) return "";
  const bool other_batch = before.contains("total-batch-size") && before["total-batch-size"] != now["total-batch-size"];
  return format("the run resumes after update {} with changed options: {}{}{}", update, changed,
                changes_rate ? effect_on_rate(schedule_of(before), schedule_of(now), update) : "",
                other_batch ? "; to keep the sequences of an update at any number of ranks, give --total-batch-size" : "");
}

std::string describe_moved_end(const nlohmann::json& before, std::uint64_t end, const TrainOptions& options,
                               const Schedule& now, std::uint64_t update) {
  if (!before.is_object() || (schedule_of(before) && (!has_end(now) || options.schedule.total != 0))) return "";
  const std::optional<Schedule> earlier = schedule_of(before, end);
  if (!earlier || (earlier->total == now.total && learning_rate(*earlier, update + 1) == learning_rate(now, update + 1)))
    return "";
  const auto end_of = [](const Schedule& schedule) {
    return has_end(schedule) ? format("ends at update {}", schedule.total) : std::string("has no end");
  };
  return format("the decay of the learning rate {} now; as planned before, it {}{}; to keep it, give --total-num-update",
                end_of(now), end_of(*earlier), effect_on_rate(earlier, now, update));
}

}  // namespace fsdp
