// The functions of Transformer that need no tensors: parameters, costs and tables.
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
          .losses = shape.rows() * sizeof(float),
          .logits = config_.vocab_size * sizeof(float),
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
    throw UserError(format("a cache of {} positions is longer than the model's longest sequence of {}; use fewer positions",
                           cache.positions, config_.longest_sequence()));
  if (shape.T > config_.max_positions)
    throw UserError(format("sequences of {} tokens are longer than the model's {} positions; lower `sequence length`", shape.T,
                           config_.max_positions));
  if (shape.T > config_.longest_sequence())
    throw UserError(
        format("sequences of {} tokens are longer than the model's sliding window of {} (attention to only a part of the "
               "sequence is not supported); lower `sequence length`",
               shape.T, config_.longest_sequence()));
}

double Transformer::flops_per_token(std::size_t T) const {
  const TransformerConfig& c = config_;
  const std::size_t table = c.vocab_size * c.width;
  std::size_t multiplied = parameter_count() - table + (c.tied_embeddings ? table : 0);
  if (model_.position_table >= 0) multiplied -= numel(parameters()[static_cast<std::size_t>(model_.position_table)].shape);
  const double pairs = kernels::visible_pairs(static_cast<double>(T)) / static_cast<double>(T);
  std::size_t adapters = 0;
  for (const Parameter& parameter : parameters()) adapters += parameter.is_adapter ? numel(parameter.shape) : 0;
  multiplied -= adapters;
  const double of_weights = c.lora.rank > 0 ? 4 : 6;  // frozen weights need no products for their gradients
  return of_weights * static_cast<double>(multiplied) + 6 * static_cast<double>(adapters) +
         12 * static_cast<double>(c.layers * c.heads * c.head_size) * pairs;
}

std::size_t Transformer::table_numel(std::size_t T) const {
  switch (config_.positions) {
    case Positions::learned:
      return 0;
    case Positions::sinusoidal:
      return T * config_.width;
    case Positions::rotary:
      return T * config_.head_size;
  }
  return 0;
}

namespace {

/// Fills table[T,C]: each row has sines, then cosines, whose frequencies fall geometrically from 1 to 1/10000. The last column
/// of an odd width is 0. This is tensor2tensor's form of Vaswani et al. 2017, section 3.5, which fairseq's
/// SinusoidalPositionalEmbedding uses. It is computed in fp32 as in fairseq, because pretrained weights were trained with these
/// roundings.
void fill_sinusoids(std::span<float> table, std::size_t T, std::size_t C, std::size_t offset) {
  const std::size_t half = C / 2;
  const auto step = static_cast<float>(-std::log(10000.0) / static_cast<double>(half - 1));
  for (std::size_t t = 0; t < T; ++t) {
    float* const row = &table[t * C];
    for (std::size_t i = 0; i < half; ++i) {
      const float frequency = std::exp(static_cast<float>(i) * step), angle = static_cast<float>(offset + t) * frequency;
      row[i] = static_cast<float>(std::sin(double{angle}));
      row[half + i] = static_cast<float>(std::cos(double{angle}));
    }
    if (C % 2 == 1) row[C - 1] = 0;
  }
}

/// Fills tables[T,D]: each row has cosines, then sines.
void fill_rotations(std::span<float> tables, std::size_t T, std::size_t D, const Rope& rope) {
  for (std::size_t i = 0; i < D / 2; ++i) {
    // Frequencies and angles are computed in fp32 as in transformers, because pretrained weights were trained with these
    // roundings.
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
}

}  // namespace

void Transformer::fill_tables(std::span<float> tables, std::size_t T, DType type) const {
  expect(tables.size() == table_numel(T), "the size of the tables");
  if (config_.positions == Positions::sinusoidal) fill_sinusoids(tables, T, config_.width, config_.position_offset);
  if (config_.positions == Positions::rotary) fill_rotations(tables, T, config_.head_size, config_.rope);
  round_values(type, tables);
}

}  // namespace fsdp
