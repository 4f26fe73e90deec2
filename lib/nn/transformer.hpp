// A decoder-only transformer as a list of stages: embedding, L blocks, head. model.hpp documents the stages' arguments and
// results. Letters as in docs/glossary.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "nn/config.hpp"
#include "nn/model.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

class Transformer final : public Model, public Recomputation, public PositionTables, public Decoding {
 public:
  /// Validates the configuration and throws UserError. Sizes of scratch depend on `device`, which need not exist.
  explicit Transformer(TransformerConfig config, const DeviceTraits& device = kernels::traits_of_cpu());

  const TransformerConfig& config() const { return config_; }
  /// Indices of the parameters, by their use.
  const ModelParameters& uses() const { return uses_; }
  /// The number of parameters of one block.
  std::size_t block_numel() const;
  ModelSizes sizes(BatchShape shape, DType type = DType::f32, const kernels::CacheShape& cache = {}) const override;
  /// Throws UserError if sequences or caches are longer than the model's longest sequence.
  void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;
  /// The number of parameters; tied ones count once.
  std::size_t parameter_count() const { return fsdp::parameter_count(config_); }
  /// FLOPs of training per token: 6 N + 6 L C T (docs/glossary.md). N includes the LM head, but not the embedding tables.
  /// With adapters: 4 N + 6 A + 6 L C T, where A is the number of their parameters; blocks below the first one with adapters
  /// have no backward pass, and count 2 N + 2 L C T.
  double flops_per_token(std::size_t T) const;

  /// The LM head's matrix products: the number of rows of logits that are in memory at once, and the number of their columns
  /// that one product computes.
  std::size_t head_rows(BatchShape shape) const;
  std::size_t head_columns() const;
  /// The tables of rotary or sinusoidal positions.
  std::size_t table_numel(std::size_t T) const override;
  void fill_tables(std::span<float> tables, std::size_t T, std::size_t length, DType type) const override;
  std::size_t table_class(std::size_t length) const override;

  void recompute_cheap(const StageContext& context, std::size_t block, const void* x_in, float* saved) const override;
  void embedding_decode(const StageContext& context, const std::int32_t* tokens, const DecodedRows& rows,
                        void* x) const override;
  void block_decode(const StageContext& context, std::size_t block, const DecodedRows& rows, const void* x_in, void* x_out,
                    float* saved, const kernels::CacheShape& shape, void* cache) const override;
  void head_logits(const StageContext& context, const void* x, std::span<const std::int32_t> rows,
                   float* logits) const override;

 private:
  TransformerConfig config_;
  ModelParameters uses_;
};

/// Prepares for the attention of all blocks in training: see kernels::prepare_attention().
void prepare_attention(const TransformerConfig& config, const Stream& stream, BatchShape shape, DType type,
                       const DeviceTraits& device, bool backward);

}  // namespace fsdp
