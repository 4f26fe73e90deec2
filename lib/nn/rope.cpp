#include "nn/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

std::size_t rotated_elements(const TransformerConfig& config, const Rope& rope) {
  return static_cast<std::size_t>(static_cast<double>(config.head_size) * rope.rotated);
}

void validate_rope(const TransformerConfig& config, const Rope& rope) {
  const auto require = [](bool ok, const char* message) {
    if (!ok) throw UserError(message);
  };
  require(rope.theta > 0, "rope_theta is not positive (the rotary frequencies are powers of it); correct config.json");
  require(rope.rotated > 0 && rope.rotated <= 1,
          "partial_rotary_factor is not between 0 and 1 (it is the part of each head that is rotated); correct config.json");
  const std::size_t elements = rotated_elements(config, rope);
  if (elements % 2 != 0 || elements == 0)
    throw UserError(
        format("the head size {} is odd (rotary positions rotate pairs of elements); change `number of heads` or "
               "`width` (config.json: head_dim, partial_rotary_factor)",
               elements));
  require(rope.factor > 0 && rope.factor <= 1e6 && rope.attention_factor > 0,
          "a factor of the rope parameters is not between 0 and 1e6 (frequencies are divided by it); correct config.json");
  switch (rope.kind) {
    case RopeKind::plain:
    case RopeKind::linear:
      return;
    case RopeKind::dynamic:
      return require(
          elements > 2 && rope.factor >= 1,
          "the dynamic rope parameters have wrong values (factor must be at least 1, and more than two elements of a "
          "head rotated); correct config.json");
    case RopeKind::yarn:
      return require(rope.original_positions > 0 && rope.theta > 1 && rope.beta_slow > 0 && rope.beta_fast >= rope.beta_slow,
                     "the yarn rope parameters have wrong values (original_max_position_embeddings and beta_slow must be "
                     "positive; beta_fast at least beta_slow; rope_theta above 1); correct config.json");
    case RopeKind::longrope: {
      const auto fits = [&](const std::vector<double>& factors) {
        return factors.size() == elements / 2 && std::all_of(factors.begin(), factors.end(), [](double x) { return x > 0; });
      };
      if (rope.original_positions == 0 || !fits(rope.short_factors) || !fits(rope.long_factors))
        throw UserError(
            format("the longrope parameters have wrong values (short_factor and long_factor need {} positive numbers, "
                   "one for each pair of rotated elements; original_max_position_embeddings must be positive); "
                   "correct config.json",
                   elements / 2));
      return;
    }
    case RopeKind::llama3:
      return require(
          rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor && rope.original_positions > 0,
          "the llama3 rope parameters have wrong values (factor, low_freq_factor and original_max_position_embeddings "
          "must be positive; high_freq_factor must be above low_freq_factor); correct config.json");
  }
}

namespace {

std::size_t class_of(const TransformerConfig& config, const Rope& rope, std::size_t length) {
  if (rope.kind == RopeKind::dynamic) return length > config.max_positions ? length : 1;
  if (rope.kind == RopeKind::longrope) return length > rope.original_positions ? rope.original_positions + 1 : 1;
  return 1;
}

/// NTK-aware scaling that grows with the sequence (posts of u/bloc97 and u/emozilla, 2023; transformers'
/// _compute_dynamic_ntk_parameters): up to max_positions nothing changes.
float dynamic_theta(const TransformerConfig& config, const Rope& rope, std::size_t length) {
  const auto elements = static_cast<float>(rotated_elements(config, rope)), factor = static_cast<float>(rope.factor);
  const float stretched =
      factor * static_cast<float>(std::max(length, config.max_positions)) / static_cast<float>(config.max_positions);
  return static_cast<float>(rope.theta) * std::pow(stretched - (factor - 1), elements / (elements - 2));
}

/// YaRN (Peng et al. 2023, section 3.2, "NTK-by-parts"): pairs that turn often in the original length keep their frequency,
/// those that turn rarely are divided by the factor, and a linear ramp connects the two.
void apply_yarn(std::vector<float>& frequencies, std::size_t elements, const Rope& rope) {
  const auto pair_with = [&](double turns) {  // the pair that turns this often within the original length
    return static_cast<double>(elements) *
           std::log(static_cast<double>(rope.original_positions) / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = pair_with(rope.beta_fast), high = pair_with(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(elements - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1 - ramp, frequency = frequencies[i];
    frequencies[i] = frequency / static_cast<float>(rope.factor) * (1 - kept) + frequency * kept;
  }
}

/// Llama 3.1's frequencies (its release notes; transformers' _compute_llama3_parameters).
float llama3_frequency(float frequency, const Rope& rope) {
  const float original = static_cast<float>(rope.original_positions), factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor), high = static_cast<float>(rope.high_freq_factor);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength > original / low) return frequency / factor;
  if (wavelength < original / high) return frequency;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::size_t rope_class(const TransformerConfig& config, std::size_t length) {
  if (config.positions != Positions::rotary) return 1;
  const std::size_t of_most = class_of(config, config.rope, length);
  return config.window_rope ? std::max(of_most, class_of(config, *config.window_rope, length)) : of_most;
}

std::vector<float> rope_frequencies(const TransformerConfig& config, const Rope& rope, std::size_t length) {
  const std::size_t elements = rotated_elements(config, rope);
  // Frequencies are computed in fp32 as in transformers, because pretrained weights were trained with these roundings.
  const double theta = rope.kind == RopeKind::dynamic ? double{dynamic_theta(config, rope, length)} : rope.theta;
  std::vector<float> frequencies(elements / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1 / static_cast<float>(std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(elements)));
  switch (rope.kind) {
    case RopeKind::plain:
    case RopeKind::dynamic:
      break;
    case RopeKind::linear:  // Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
                            // Interpolation"
      for (float& frequency : frequencies) frequency /= static_cast<float>(rope.factor);
      break;
    case RopeKind::yarn:
      apply_yarn(frequencies, elements, rope);
      break;
    case RopeKind::longrope: {  // Ding et al. 2024, "LongRoPE": a factor for each pair, from one of two lists
      const auto& factors = length > rope.original_positions ? rope.long_factors : rope.short_factors;
      for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= static_cast<float>(factors[i]);
      break;
    }
    case RopeKind::llama3:
      for (float& frequency : frequencies) frequency = llama3_frequency(frequency, rope);
      break;
  }
  return frequencies;
}

}  // namespace fsdp
