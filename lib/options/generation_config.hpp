// The settings for generation: options, and generation_config.json, the defaults of a model for transformers' generate().
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "generate/generator.hpp"

namespace fsdp {

/// The settings for generation; a setting without a value was given neither by the user nor by the file.
struct GenerationWishes {
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<std::size_t> top_k;
  std::vector<std::string> stop;  // strings that end the generation; empty: not set
};

/// --max-new-tokens, --stop and the options of sampling. Sets only the length and the seed of `generation`.
void add_generation_options(OptionTable& table, GenerationOptions& generation, GenerationWishes& wishes);

/// The settings with the defaults of SamplingOptions for those without a value.
SamplingOptions sampling_of(const GenerationWishes& wishes);

/// The options of a model that only generates, with `precision` as the type of its parameters.
ShardingOptions sharding_for_generation(const std::string& strategy, DType precision, const GenerationShape& shape);

/// What add_generation_config() found in the file.
struct AddedWishes {
  std::vector<std::string> taken;    // "temperature 0.6"
  std::vector<std::string> unknown;  // ignored keys: unknown ones, and those that only transformers supports
};

/// Sets the settings that have no value from generation_config.json in the folder `model`, if there is such a file: temperature
/// (0 if do_sample is false), top_k, top_p, repetition_penalty and stop_strings. Throws UserError if one of these has a value
/// that the sampling options do not accept.
AddedWishes add_generation_config(const std::filesystem::path& model, GenerationWishes& wishes);

}  // namespace fsdp
