// The functions of Transformer that need no tensors: parameters, costs and tables.
#include "nn/transformer.hpp"

#include <algorithm>
#include <cmath>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/rope.hpp"
#include "nn/stages.hpp"

namespace fsdp {

Transformer::Transformer(TransformerConfig config, const DeviceTraits& device) : Model(device), config_(std::move(config)) {
  config_.validate();
  uses_ = list_parameters(config_);
  parameters_ = uses_.parameters;
  row_sizes = {.vocabulary = config_.vocab_size, .classes = config_.vocab_size};
  transformer_config = &config_, takes_short_rows = true;
  std::vector<std::vector<std::size_t>> read = fsdp::parameters_by_stage(uses_);
  first = stages::make_embedding(*this, std::move(read.front()));
  for (std::size_t block = 0; block < config_.layers; ++block)
    blocks.push_back(stages::make_block(*this, block, std::move(read[1 + block])));
  loss = stages::make_head(*this, std::move(read.back()));
  recomputation = this, tables = this, decoding = this;
}

ModelSizes Transformer::sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const {
  const stages::Saved saved{config_, shape, type}, in_pieces{config_, shape, type, true};
  const std::size_t batch = shape.rows() * sizeof(std::int32_t);
  const stages::Scratch of_all{config_, shape, type, device_};
  std::size_t scratch = of_all.numel, scratch_in_pieces = of_all.without_mlp;
  if (cache.positions > 0) {
    const stages::Scratch of_one{config_, {1, 1}, type, device_};
    const std::size_t of_steps = stages::DecodingScratch{of_one, cache}.numel;
    scratch = std::max(scratch, of_steps), scratch_in_pieces = std::max(scratch_in_pieces, of_steps);
  }
  const std::size_t piece = stages::mlp_piece_rows(config_, shape.rows(), device_);
  const bool divides = piece < shape.rows();
  // The rows of a step of decoding can be divided into larger pieces.
  const std::size_t most = cache.positions > 0 ? std::min(shape.rows(), stages::most_mlp_rows(config_, device_)) : piece;
  const std::size_t of_piece = stages::PieceScratch{{config_, {1, most}, type, device_}}.numel;
  std::vector<std::size_t> caches;
  for (std::size_t block = 0; block < config_.layers; ++block)
    caches.push_back(cache.sequences * stages::cache_of(config_, cache, block).positions * stages::cached_width(config_) *
                     size_of(type));
  return {.activations = std::vector(config_.layers + 1, shape.rows() * config_.width * size_of(type)),
          .saved = std::vector(config_.layers, (saved.kept + saved.cheap) * sizeof(float)),
          .kept = std::vector(config_.layers, saved.kept * sizeof(float)),
          .scratch = scratch * sizeof(float),
          .saved_in_pieces = std::vector(divides ? config_.layers : 0, (in_pieces.kept + in_pieces.cheap) * sizeof(float)),
          .scratch_in_pieces = divides ? std::max(scratch_in_pieces, of_piece) * sizeof(float) : 0,
          .first_uses_scratch = uses_.embedding_adapter.lora_a >= 0,
          .first_backward_reads = uses_.embedding_adapter.lora_a >= 0,
          .inputs = batch,
          .targets = batch,
          .losses = shape.rows() * sizeof(float),
          .logits = config_.vocab_size * sizeof(float),
          .tables = table_numel(std::max(shape.T, cache.positions)) * sizeof(float),
          .cache = std::move(caches),
          .stages = parameters_by_stage()};
}

void prepare_attention(const TransformerConfig& config, const Stream& stream, BatchShape shape, DType type,
                       const DeviceTraits& device, bool backward) {
  for (std::size_t block = 0; block < config.layers; ++block)
    if (block == 0 || config.window_of(block) != config.window_of(block - 1))
      kernels::prepare_attention(stream, type, stages::block_attention(config, shape, type, device, config.window_of(block)),
                                 backward);
}

std::size_t Transformer::block_numel() const {
  std::size_t count = 0;
  for (const Parameter& parameter : parameters_)
    if (parameter.block == 0) count += numel(parameter.shape);
  return count;
}

void Transformer::check_batch(BatchShape shape, DType /*type*/, const kernels::CacheShape& cache) const {
  if (cache.positions > config_.longest_sequence())
    throw UserError(format("a cache of {} positions is longer than the model's longest sequence of {}; use fewer positions",
                           cache.positions, config_.longest_sequence()));
  if (shape.T > config_.longest_sequence())
    throw UserError(format("sequences of {} tokens are longer than the model's {} positions; lower `sequence length`", shape.T,
                           config_.longest_sequence()));
}

double Transformer::flops_per_token(std::size_t T) const {
  const TransformerConfig& c = config_;
  const auto is_table = [&](int p) {  // rows are read, not multiplied
    return p == uses_.position_table || p == uses_.embedding_adapter.lora_a || (p == uses_.token_table && !c.tied_embeddings);
  };
  int lowest = c.lora.rank > 0 ? static_cast<int>(c.layers) : 0;  // the first block that gradients reach
  for (int p = 0; const Parameter& parameter : parameters_) {
    if (parameter.is_adapter && parameter.block >= 0) lowest = std::min(lowest, parameter.block);
    if (parameter.is_adapter && (p == uses_.token_table || p == uses_.embedding_adapter.lora_a)) lowest = 0;
    ++p;
  }
  std::size_t below = 0, frozen = 0, trained = 0;
  for (int p = 0; const Parameter& parameter : parameters_) {
    std::size_t& counted = parameter.is_adapter || c.lora.rank == 0           ? trained
                           : parameter.block >= 0 && parameter.block < lowest ? below
                                                                              : frozen;
    if (!is_table(p++)) counted += numel(parameter.shape);
  }
  double forward_pairs = 0, pairs = 0;  // per token
  for (std::size_t layer = 0; layer < c.layers; ++layer)
    (static_cast<int>(layer) < lowest ? forward_pairs : pairs) +=
        kernels::visible_pairs(T, c.window_of(layer)) / static_cast<double>(T);
  return 2 * static_cast<double>(below) + 4 * static_cast<double>(frozen) + 6 * static_cast<double>(trained) +
         static_cast<double>(c.heads * c.head_size) * (4 * forward_pairs + 12 * pairs);
}

std::size_t Transformer::table_numel(std::size_t T) const {
  switch (config_.positions) {
    case Positions::learned:
      return 0;
    case Positions::sinusoidal:
      return T * config_.width;
    case Positions::rotary:
      return T * stages::table_width(config_);
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

/// Fills table[T,E], where E is the number of rotated elements of a head: each row has cosines, then sines. Rows are `stride`
/// floats apart.
void fill_rotations(float* table, std::size_t stride, std::size_t T, const TransformerConfig& config, const Rope& rope,
                    std::size_t length) {
  const std::vector<float> frequencies = rope_frequencies(config, rope, length);
  const std::size_t pairs = frequencies.size();
  const auto factor = static_cast<float>(rope.attention_factor);
  for (std::size_t i = 0; i < pairs; ++i)
    for (std::size_t t = 0; t < T; ++t) {
      // In fp32, as in transformers: see rope_frequencies().
      const double angle = static_cast<float>(t) * frequencies[i];
      table[t * stride + i] = factor * static_cast<float>(std::cos(angle));
      table[t * stride + pairs + i] = factor * static_cast<float>(std::sin(angle));
    }
}

}  // namespace

std::size_t Transformer::table_class(std::size_t length) const { return rope_class(config_, length); }

void Transformer::fill_tables(std::span<float> all, std::size_t T, std::size_t length, DType type) const {
  expect(all.size() == table_numel(T), "the size of the tables");
  if (config_.positions == Positions::sinusoidal) fill_sinusoids(all, T, config_.width, config_.position_offset);
  if (config_.positions == Positions::rotary) {
    const std::size_t stride = stages::table_width(config_);
    fill_rotations(all.data(), stride, T, config_, config_.rope, length);
    if (config_.window_rope)
      fill_rotations(all.data() + rotated_elements(config_, config_.rope), stride, T, config_, *config_.window_rope, length);
  }
  round_values(type, all);
}

}  // namespace fsdp
