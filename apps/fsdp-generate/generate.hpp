// What fsdp-generate does.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/options.hpp"
#include "train/compute_device.hpp"

namespace fsdp {

struct GenerateOptions {
  std::filesystem::path model;
  std::string prompt;
  std::string tokenizer;
  std::size_t max_new_tokens = 200;
  double temperature = 1;
  std::size_t top_k = 0;
  double top_p = 1;
  std::size_t seed = 1;
  DeviceChoice device = DeviceChoice::automatic;
  std::size_t threads = 0;
  bool no_verify = false;
};

OptionTable generate_option_table(GenerateOptions& options);

/// Hands the prompt and then each new piece of text to `out`. The same options give the same text. Throws UserError.
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& out);

/// The token drawn from logits[V] with `uniform` in [0, 1): logits / temperature, of these the top_k largest (0: all), of these
/// the fewest whose probabilities reach top_p (Holtzman et al. 2020). Temperature 0 takes the largest. Ties go to the lower
/// token.
std::size_t sample_token(std::span<const float> logits, double temperature, std::size_t top_k, double top_p, double uniform);

}  // namespace fsdp
