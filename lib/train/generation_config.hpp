// Reads generation_config.json, the defaults of a model for transformers' generate().
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// The numbers that a sampling option accepts, on the command line and in the file.
struct SamplingRule {
  const char* accepts;
  bool (*ok)(double);
};
inline constexpr SamplingRule temperature_rule = {"0 or more", [](double x) { return x >= 0; }},
                              top_p_rule = {"above 0, at most 1", [](double x) { return x > 0 && x <= 1; }},
                              repetition_penalty_rule = {"above 0", [](double x) { return x > 0; }};
inline constexpr double most_top_k = 1e9;

/// The settings for generation; an unset one was given neither by the user nor by the file.
struct GenerationWishes {
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<std::size_t> top_k;
  std::vector<std::string> stop;  // strings that end the generation; empty: not set
};

/// What add_generation_config() found in the file.
struct AddedWishes {
  std::vector<std::string> taken;    // "temperature 0.6"
  std::vector<std::string> unknown;  // keys that are ignored here: unknown ones, and those that change the text in transformers
};

/// Fills unset settings from the file in the model's folder, if there is one: temperature (0 if do_sample is false), top_k,
/// top_p, repetition_penalty and stop_strings. Throws UserError if one of these has a value that the sampling options do not
/// accept.
AddedWishes add_generation_config(const std::filesystem::path& model, GenerationWishes& wishes);

}  // namespace fsdp
