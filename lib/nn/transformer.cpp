// What a Transformer knows without any tensor at hand: its parameters, its costs and its tables.
#include "nn/transformer.hpp"

#include <cmath>
#include <numbers>

#include "base/element.hpp"
#include "base/error.hpp"

namespace fsdp {

Transformer::Transformer(TransformerConfig config, const DeviceTraits& device) : config_(std::move(config)), device_(device) {
  config_.validate();
  model_ = list_parameters(config_);
}

double Transformer::flops_per_token(std::size_t T) const {
  const TransformerConfig& c = config_;
  const std::size_t table = c.vocab_size * c.width;
  std::size_t multiplied = parameter_count() - table + (c.tied_embeddings ? table : 0);
  if (model_.position_table >= 0) multiplied -= numel(parameters()[static_cast<std::size_t>(model_.position_table)].shape);
  const double attention = static_cast<double>(c.layers) * static_cast<double>(c.heads * c.head_size) * static_cast<double>(T);
  return 6 * static_cast<double>(multiplied) + 6 * attention;
}

std::size_t Transformer::table_numel(std::size_t T) const {
  return config_.positions == Positions::rotary ? T * config_.head_size : 0;
}

void Transformer::fill_tables(std::span<float> tables, std::size_t T, DType type) const {
  expect(tables.size() == table_numel(T), "the size of the tables");
  if (tables.empty()) return;
  const std::size_t D = config_.head_size;
  const Rope& rope = config_.rope;
  for (std::size_t i = 0; i < D / 2; ++i) {
    // Frequencies and angles are computed in fp32, as in transformers: pretrained weights have seen these roundings.
    float frequency = 1 / static_cast<float>(std::pow(rope.theta, static_cast<float>(2 * i) / static_cast<float>(D)));
    if (rope.llama3) {
      const float original = static_cast<float>(rope.original_positions);
      const float low = static_cast<float>(rope.low_freq_factor), high = static_cast<float>(rope.high_freq_factor);
      const float factor = static_cast<float>(rope.factor);
      const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
      if (wavelength > original / low) {
        frequency /= factor;
      } else if (wavelength >= original / high) {
        const float smooth = (original / wavelength - low) / (high - low);
        frequency = (1 - smooth) * frequency / factor + smooth * frequency;
      }
    }
    for (std::size_t t = 0; t < T; ++t) {
      const double angle = static_cast<float>(t) * frequency;
      tables[t * D + i] = static_cast<float>(std::cos(angle));
      tables[t * D + D / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  round_values(type, tables);
}

}  // namespace fsdp
