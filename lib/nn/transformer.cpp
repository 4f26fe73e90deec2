// What a Transformer knows without any tensor at hand: its parameters, its costs and its tables.
#include "nn/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

Transformer::Transformer(TransformerConfig config, const DeviceTraits& device) : config_(std::move(config)), device_(device) {
  config_.validate();
  model_ = list_parameters(config_);
}

ModelSizes Transformer::sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const {
  const std::size_t batch = shape.rows() * sizeof(std::int32_t),
                    scratch =
                        std::max(scratch_numel(shape, type), cache.positions > 0 ? decoding_scratch_numel(cache, type) : 0);
  return {.activations = std::vector(blocks() + 1, shape.rows() * config_.width * size_of(type)),
          .saved = std::vector(blocks(), saved_numel(shape, type) * sizeof(float)),
          .kept = std::vector(blocks(), kept_numel(shape, type) * sizeof(float)),
          .scratch = scratch * sizeof(float),
          .inputs = batch,
          .targets = batch,
          .tables = table_numel(std::max(shape.T, cache.positions)) * sizeof(float),
          .cache = cache_numel(cache) * size_of(type),
          .stages = parameters_by_stage()};
}

std::size_t Transformer::block_numel() const {
  std::size_t count = 0;
  for (const Parameter& parameter : parameters())
    if (parameter.block == 0) count += numel(parameter.shape);
  return count;
}

void Transformer::check_batch(BatchShape shape, DType /*type*/, const kernels::CacheShape& cache) const {
  if (cache.positions > config_.longest_sequence())
    throw UserError(format("a cache of {} positions is longer than the model's longest sequence of {}; ask for fewer",
                           cache.positions, config_.longest_sequence()));
  if (shape.T > config_.max_positions)
    throw UserError(format("sequences of {} tokens are longer than the model's {} positions; lower `sequence length`", shape.T,
                           config_.max_positions));
  if (shape.T > config_.longest_sequence())
    throw UserError(
        format("sequences of {} tokens are longer than the model's sliding window of {} (attention that sees a part "
               "of the sequence is not supported); lower `sequence length`",
               shape.T, config_.longest_sequence()));
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
