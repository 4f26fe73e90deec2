// generation_config.json: how a model is to generate, in the words of transformers' generate().
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// Which numbers an option of sampling takes, on the command line and in the file.
struct SamplingRule {
  const char* accepts;
  bool (*ok)(double);
};
inline constexpr SamplingRule temperature_rule = {"0 or more", [](double x) { return x >= 0; }},
                              top_p_rule = {"above 0, at most 1", [](double x) { return x > 0 && x <= 1; }},
                              repetition_penalty_rule = {"above 0", [](double x) { return x > 0; }};
inline constexpr double most_top_k = 1e9;

/// How a model generates, as far as somebody has said so.
struct GenerationWishes {
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<std::size_t> top_k;
  std::vector<std::string> stop;  // texts that end a text; empty: not said
};

/// What a file added to the wishes.
struct AddedWishes {
  std::vector<std::string> taken;    // "temperature 0.6"
  std::vector<std::string> unknown;  // keys that change the text in transformers, or are unknown, and have no effect here
};

/// Wishes for what is not set, from the file in the model's folder, if there is one: temperature (0 if it says do_sample
/// false), top_k, top_p, repetition_penalty and stop_strings. Throws UserError for a value of these that generate() would not
/// take.
AddedWishes add_generation_config(const std::filesystem::path& model, GenerationWishes& wishes);

}  // namespace fsdp
