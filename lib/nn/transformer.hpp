// A decoder-only transformer as a chain of stages: embedding, L blocks, head. model.hpp documents the stages' arguments and
// results. Letters as in docs/glossary.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "kernels/loss_sum.hpp"
#include "kernels/threads.hpp"
#include "nn/config.hpp"
#include "nn/model.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

class Transformer final : public Model {
 public:
  /// Validates the configuration and throws UserError. Sizes of scratch depend on `device`, which need not exist.
  explicit Transformer(TransformerConfig config, const DeviceTraits& device = kernels::traits_of_cpu());

  const TransformerConfig& config() const { return config_; }
  const DeviceTraits& device() const override { return device_; }
  const std::vector<Parameter>& parameters() const override { return model_.parameters; }
  /// The indices of the parameters that each stage reads; see nn/parameters.hpp.
  std::vector<std::vector<std::size_t>> parameters_by_stage() const { return fsdp::parameters_by_stage(model_); }
  /// The number of parameters of one block.
  std::size_t block_numel() const;
  /// Blocks are numbered 0 .. blocks()-1.
  std::size_t blocks() const override { return config_.layers; }
  RowSizes row_sizes() const override { return {.vocabulary = config_.vocab_size, .classes = config_.vocab_size}; }
  const TransformerConfig* transformer_config() const override { return &config_; }
  ModelSizes sizes(BatchShape shape, DType type = DType::f32, const kernels::CacheShape& cache = {}) const override;
  /// Throws UserError if sequences or caches are longer than the model's longest sequence.
  void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const override;
  /// The number of parameters; tied ones count once.
  std::size_t parameter_count() const { return fsdp::parameter_count(config_); }
  /// FLOPs of training per token: 6 N + 6 L C T (docs/glossary.md). N includes the LM head, but not the embedding tables.
  /// With adapters: 4 N + 6 A + 6 L C T, where A is the number of their parameters.
  double flops_per_token(std::size_t T) const;

  /// saved_numel(): the number of floats that block_forward() saves for block_backward(), besides the block's input.
  /// kept_numel(): how many of them selective checkpointing keeps. The kept part comes first. The rest (norms and activation
  /// functions) is cheap to recompute by block_recompute_cheap(). `type`: of weights and activations.
  std::size_t saved_numel(BatchShape shape, DType type = DType::f32) const;
  std::size_t kept_numel(BatchShape shape, DType type = DType::f32) const;
  /// The LM head's matrix products: the number of rows of logits that are in memory at once, and the number of their columns
  /// that one product computes.
  std::size_t head_rows(BatchShape shape) const;
  std::size_t head_columns() const;
  /// The number of floats of scratch memory that is enough for each stage.
  std::size_t scratch_numel(BatchShape shape, DType type = DType::f32) const;
  /// The number of floats of the tables of rotary or sinusoidal positions.
  std::size_t table_numel(std::size_t T) const override;
  void fill_tables(std::span<float> tables, std::size_t T, std::size_t length, DType type) const override;
  std::size_t table_class(std::size_t length) const override;

  void embedding_forward(const StageContext& context, const std::int32_t* tokens, void* x) const override;
  void embedding_backward(const StageContext& context, const std::int32_t* tokens, const void* dx,
                          kernels::Write write) const override;
  /// If x_out is null (recomputation), the last matrix product is left out.
  void block_forward(const StageContext& context, std::size_t block, const void* x_in, void* x_out, float* saved,
                     float* cheap = nullptr) const override;
  void block_recompute_cheap(const StageContext& context, std::size_t block, const void* x_in, float* saved,
                             float* cheap = nullptr) const override;
  void block_backward(const StageContext& context, std::size_t block, const void* x_in, float* saved, void* dx,
                      kernels::Write write, float* cheap = nullptr) const override;
  /// Final norm, projection to the vocabulary and cross-entropy, in chunks of rows. Targets below 0 do not count.
  void head_forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                             kernels::LossSum& loss, void* dx, kernels::Write write) const override;
  void head_loss(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
                 float* losses = nullptr) const override;

  /// The number of elements of a block's key-value cache, and the number of floats of scratch for decoding.
  std::size_t cache_numel(const kernels::CacheShape& cache, std::size_t block) const;
  std::size_t decoding_scratch_numel(const kernels::CacheShape& cache, DType type = DType::f32) const;
  void embedding_decode(const StageContext& context, const std::int32_t* tokens, const DecodedRows& rows,
                        void* x) const override;
  void block_decode(const StageContext& context, std::size_t block, const DecodedRows& rows, const void* x_in, void* x_out,
                    float* saved, const kernels::CacheShape& shape, void* cache, float* cheap = nullptr) const override;
  void head_logits(const StageContext& context, const void* x, std::span<const std::int32_t> rows,
                   float* logits) const override;

 private:
  /// `attend` computes attention from the saved queries, keys and values, which are not rotated yet, and saves its result.
  template <class E, class Attend>
  void forward_block(const StageContext& context, std::size_t block, const E* x_in, E* x_out, float* saved, float* cheap,
                     const Attend& attend) const;
  /// block_decode() for the wanted rows only. `append` runs first, for all rows: it rotates queries and keys, and writes keys
  /// and values to the cache. `attend` computes attention over the cache for at most `at_once` rows.
  template <class E, class Append, class Attend>
  void decode_wanted(const StageContext& context, std::size_t block, const DecodedRows& rows, const E* x_in, E* x_out,
                     float* saved, std::size_t at_once, float* cheap, const Append& append, const Attend& attend) const;
  template <class E>
  void recompute_cheap_of_block(const StageContext& context, std::size_t block, const E* x_in, float* saved,
                                float* cheap) const;
  template <class E>
  void backward_block(const StageContext& context, std::size_t block, const E* x_in, float* saved, E* dx, kernels::Write write,
                      float* cheap) const;

  TransformerConfig config_;
  DeviceTraits device_;
  ModelParameters model_;
};

}  // namespace fsdp
