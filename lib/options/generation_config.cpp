#include "options/generation_config.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

namespace {

/// The numbers that a sampling option accepts, on the command line and in generation_config.json.
struct SamplingRule {
  const char* accepts;
  bool (*ok)(double);
};
constexpr SamplingRule temperature_rule = {"0 or more", [](double x) { return x >= 0; }},
                       top_p_rule = {"above 0, at most 1", [](double x) { return x > 0 && x <= 1; }},
                       repetition_penalty_rule = {"above 0", [](double x) { return x > 0; }};
constexpr double most_top_k = 1e9;

constexpr const char* generation_config_json = "generation_config.json";

/// Keys that change the text in transformers 5.24 and are not supported here. `changes_nothing` is a number with which the key
/// has no effect; null, false and empty lists have no effect for any key.
struct Elsewhere {
  const char* name;
  double changes_nothing;
};
constexpr Elsewhere elsewhere[] = {{"num_beams", 1},
                                   {"num_beam_groups", 1},
                                   {"min_length", 0},
                                   {"min_new_tokens", 0},
                                   {"min_p", 0},
                                   {"top_h", 1},
                                   {"typical_p", 1},
                                   {"epsilon_cutoff", 0},
                                   {"eta_cutoff", 0},
                                   {"encoder_repetition_penalty", 1},
                                   {"encoder_no_repeat_ngram_size", 0},
                                   {"max_time", 0},
                                   {"no_repeat_ngram_size", 0},
                                   {"guidance_scale", 1},
                                   {"penalty_alpha", 0},
                                   {"bad_words_ids", 0},
                                   {"suppress_tokens", 0},
                                   {"begin_suppress_tokens", 0},
                                   {"sequence_bias", 0},
                                   {"forced_bos_token_id", -1},
                                   {"forced_eos_token_id", -1},
                                   {"force_words_ids", 0},
                                   {"constraints", 0},
                                   {"exponential_decay_length_penalty", 0},
                                   {"watermarking_config", 0},
                                   {"num_return_sequences", 1},
                                   {"token_healing", 0},
                                   {"dola_layers", 0}};
/// Keys that are used here, and keys that change no token: settings of beam search, of speed, or of what generate() returns.
constexpr const char* known[] = {"temperature",
                                 "top_k",
                                 "top_p",
                                 "do_sample",
                                 "repetition_penalty",
                                 "stop_strings",
                                 "eos_token_id",
                                 "bos_token_id",
                                 "pad_token_id",
                                 "decoder_start_token_id",
                                 "max_new_tokens",
                                 "max_length",
                                 "transformers_version",
                                 "_from_model_config",
                                 "use_cache",
                                 "cache_implementation",
                                 "cache_config",
                                 "return_legacy_cache",
                                 "compile_config",
                                 "disable_compile",
                                 "prefill_chunk_size",
                                 "low_memory",
                                 "early_stopping",
                                 "length_penalty",
                                 "diversity_penalty",
                                 "renormalize_logits",
                                 "remove_invalid_values",
                                 "output_scores",
                                 "output_logits",
                                 "output_attentions",
                                 "output_hidden_states",
                                 "return_dict_in_generate",
                                 "assistant_confidence_threshold",
                                 "assistant_early_exit",
                                 "assistant_lookbehind",
                                 "is_assistant",
                                 "max_matching_ngram_size",
                                 "num_assistant_tokens",
                                 "num_assistant_tokens_schedule",
                                 "prompt_lookup_num_tokens",
                                 "target_lookbehind"};

bool changes_something(const nlohmann::json& value, double nothing) {
  if (value.is_boolean()) return value.get<bool>();
  return value.is_number() ? value.get<double>() != nothing : !value.empty();
}

}  // namespace

void add_generation_options(OptionTable& table, GenerationOptions& generation, GenerationWishes& wishes) {
  const auto of_model_or = [](const char* otherwise) {
    return format("the value in the model's generation_config.json, or {}", otherwise);
  };
  table.integer("max-new-tokens", "N", generation.max_new_tokens, {1, 1e9}, "new tokens per text, at most").common();
  table
      .texts("stop", "TEXT", wishes.stop,
             "end a text before TEXT; may be given several times. A model's own end-of-text token always ends a text.")
      .unset(of_model_or("none"));
  table.group("Sampling");
  table
      .number("temperature", "X", wishes.temperature, "divides the logits; 0 always takes the most likely token",
              temperature_rule.accepts, temperature_rule.ok)
      .unset(of_model_or("1"))
      .common();
  table.integer("top-k", "K", wishes.top_k, {0, most_top_k}, "only the K most likely tokens; 0 means all")
      .unset(of_model_or("0"))
      .common();
  table
      .number("top-p", "P", wishes.top_p, "only the most likely tokens that together have this probability", top_p_rule.accepts,
              top_p_rule.ok)
      .unset(of_model_or("1"))
      .common();
  table
      .number("repetition-penalty", "X", wishes.repetition_penalty,
              "makes tokens that are already in the prompt or the text less likely; 1 changes nothing",
              repetition_penalty_rule.accepts, repetition_penalty_rule.ok)
      .unset(of_model_or("1"));
  table.integer("seed", "N", generation.seed, {0, 4294967295.0}, "the same seed gives the same text").common();
}

SamplingOptions sampling_of(const GenerationWishes& wishes) {
  const SamplingOptions otherwise;
  return {.temperature = wishes.temperature.value_or(otherwise.temperature),
          .top_k = wishes.top_k.value_or(otherwise.top_k),
          .top_p = wishes.top_p.value_or(otherwise.top_p),
          .repetition_penalty = wishes.repetition_penalty.value_or(otherwise.repetition_penalty)};
}

ShardingOptions sharding_for_generation(const std::string& strategy, DType precision, const GenerationShape& shape) {
  return {.strategy = strategy,
          .batch = {shape.rows, 1},
          .types = {.parameter = precision,
                    .master = precision == DType::bf16 ? DType::bf16 : DType::f32},  // bf16 needs no fp32 copy
          .plan = {.training = false, .cache = shape.cache}};
}

AddedWishes add_generation_config(const std::filesystem::path& model, GenerationWishes& wishes) {
  AddedWishes added;
  if (kind_of(model) != PathKind::folder || kind_of(model / generation_config_json) != PathKind::file) return added;
  const std::filesystem::path path = model / generation_config_json;
  const nlohmann::json config = read_json_object(path);
  const auto find = [&](const char* name) { return config.value(name, nlohmann::json()); };
  const auto require = [&](bool accepted, const char* name, const char* accepts) {
    if (!accepted)
      throw UserError(format("{}: {} {} is not accepted (it must be {}); correct it", path.string(), name,
                             json_excerpt(find(name)), accepts));
  };
  const auto add = [&](auto& wish, const char* option, const char* name, const SamplingRule& rule) {
    const nlohmann::json found = wish ? nlohmann::json() : find(name);
    if (found.is_null()) return;
    require(found.is_number() && rule.ok(found.get<double>()), name, rule.accepts);
    wish = static_cast<std::remove_reference_t<decltype(*wish)>>(found.get<double>());
    added.taken.push_back(format("{} {}", option, *wish));
  };
  if (!wishes.temperature && find("do_sample") == false) {
    wishes.temperature = 0;
    added.taken.emplace_back("temperature 0 (do_sample is false)");
  }
  add(wishes.temperature, "temperature", "temperature", temperature_rule);
  if (wishes.temperature != 0.0) {  // at temperature 0, top_k and top_p have no effect
    add(wishes.top_k, "top-k", "top_k",
        {"a whole number from 0 to 1e9", [](double x) { return x >= 0 && x <= most_top_k && x == std::floor(x); }});
    add(wishes.top_p, "top-p", "top_p", top_p_rule);
  }
  add(wishes.repetition_penalty, "repetition-penalty", "repetition_penalty", repetition_penalty_rule);
  if (wishes.stop.empty()) {
    const nlohmann::json found = find("stop_strings");
    for (const nlohmann::json& text : found.is_array() || found.is_null() ? found : nlohmann::json::array({found})) {
      require(text.is_string() && text != "", "stop_strings", "texts");
      wishes.stop.push_back(text);
      added.taken.push_back("stop " + json_text(text));
    }
  }
  for (const auto& item : config.items()) {
    const std::string& name = item.key();
    const auto row =
        std::find_if(std::begin(elsewhere), std::end(elsewhere), [&](const Elsewhere& e) { return name == e.name; });
    if (row == std::end(elsewhere) && std::find(std::begin(known), std::end(known), name) != std::end(known)) continue;
    if (changes_something(item.value(), row == std::end(elsewhere) ? 0 : row->changes_nothing))
      added.unknown.push_back(excerpt(name));
  }
  return added;
}

}  // namespace fsdp
