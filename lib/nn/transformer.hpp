// A decoder-only transformer as a chain of stages: embedding, L blocks, head. A stage is arithmetic on tensors that the caller
// provides: it owns no memory, knows nothing of ranks, units or shards, and does not allocate. Letters as in docs/glossary.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "kernels/loss_sum.hpp"
#include "kernels/threads.hpp"
#include "nn/config.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

/// The size of one micro-batch on one rank.
struct BatchShape {
  std::size_t B = 0, T = 0;
  std::size_t rows() const { return B * T; }
};

/// Dropout of an update, as Hugging Face's GPT-2 places it: `residual` after the embedding and on each branch before it is
/// added to the residual stream (embd_pdrop, resid_pdrop), `attention` on its probabilities (attn_pdrop). The masks depend on
/// seed, update and global indices alone: the micro-batch's sequences are the update's first_sequence, first_sequence + 1, ...
struct Dropout {
  float residual = 0, attention = 0;  // rates in [0, 1)
  std::uint32_t seed = 0;
  std::uint64_t update = 0, first_sequence = 0;
};

/// What a stage works with. weights[p] and gradients[p] point to parameter p, contiguous in its stored shape; they are
/// null where the caller has not gathered p, or wants no gradient. Weights and activations are numbers of `type`, gradients of
/// parameters fp32. `scratch` holds scratch_numel() floats, contents lost; `tables` are of fill_tables(). An evaluation leaves
/// `dropout` as it is; backward and recomputation take forward's. `positions`: [R] or null; see kernels::AttentionShape. With
/// them each document of a sequence is computed as a sequence of its own.
struct StageContext {
  Stream& stream;
  std::span<const void* const> weights;
  std::span<float* const> gradients;
  float* scratch;
  const float* tables;
  BatchShape shape;
  Dropout dropout = {};
  DType type = DType::f32;
  const std::int32_t* positions = nullptr;
};

/// Tokens that a step of decoding gives the model: row r is at positions[r] of sequences[r] of a cache, which has all positions
/// before it, or gets them from rows before it. The rows of a sequence stand side by side, in order. `..._there` are the same
/// numbers in the memory of the stream's device.
struct DecodedRows {
  std::span<const std::int32_t> sequences, positions;
  const std::int32_t *sequences_there, *positions_there;
};

class Transformer {
 public:
  /// Validates the configuration; throws UserError. `device`: where it runs, or would run; sizes of scratch follow from it.
  explicit Transformer(TransformerConfig config, const DeviceTraits& device = kernels::traits_of_cpu());

  const TransformerConfig& config() const { return config_; }
  const DeviceTraits& device() const { return device_; }
  const std::vector<Parameter>& parameters() const { return model_.parameters; }
  /// Which of them each stage reads; see nn/parameters.hpp.
  std::vector<std::vector<std::size_t>> parameters_by_stage() const { return fsdp::parameters_by_stage(model_); }
  /// Blocks are numbered 0 .. blocks()-1.
  std::size_t blocks() const { return config_.layers; }
  /// All parameters, tied ones once.
  std::size_t parameter_count() const { return fsdp::parameter_count(config_); }
  /// FLOPs of training per token: 6N + 6LCT with N counting the head and not the lookups (docs/glossary.md).
  double flops_per_token(std::size_t T) const;

  /// Floats of memory in which block_forward saves for block_backward, beside its input, and how many of them, in front, are
  /// worth keeping: the rest (norms, activation) is cheap, and block_refill makes it again. `type`: of weights and activations.
  std::size_t saved_numel(BatchShape shape, DType type = DType::f32) const;
  std::size_t kept_numel(BatchShape shape, DType type = DType::f32) const;
  /// The head's products: rows of logits that are in memory at once, and columns that are multiplied at a time.
  std::size_t head_rows(BatchShape shape) const;
  std::size_t head_columns() const;
  /// Floats of scratch that any stage needs.
  std::size_t scratch_numel(BatchShape shape, DType type = DType::f32) const;
  /// Floats of tables made once from the configuration (rotary positions) for sequences up to T, and their contents, which are
  /// floats rounded to `type`.
  std::size_t table_numel(std::size_t T) const;
  void fill_tables(std::span<float> tables, std::size_t T, DType type = DType::f32) const;

  // Activations (x, dx) are given as pointers to numbers of context.type.

  /// x[R,C] from tokens[R].
  void embedding_forward(const StageContext& context, const std::int32_t* tokens, void* x) const;
  /// Gradients of the embeddings from dx. `write` overwrite: the first contribution of the update to these gradients; where the
  /// table is tied, head_backward's contribution of the same micro-batch already lies there and is added to.
  void embedding_backward(const StageContext& context, const std::int32_t* tokens, const void* dx, kernels::Write write) const;

  /// x_out[R,C] = block(x_in[R,C]); fills saved[saved_numel()]. x_out must not be x_in. Null: only what is saved is wanted, and
  /// the last product is not done (recomputation). `cheap`, here and below: where the cheap part lies if not behind the kept
  /// one.
  void block_forward(const StageContext& context, std::size_t block, const void* x_in, void* x_out, float* saved,
                     float* cheap = nullptr) const;
  /// The cheap part from x_in and the kept part, with block_forward's bits.
  void block_refill(const StageContext& context, std::size_t block, const void* x_in, float* saved,
                    float* cheap = nullptr) const;
  /// dx[R,C], the gradient of x_out, becomes that of x_in; the block's gradients are written or added to. What is saved may be
  /// overwritten.
  void block_backward(const StageContext& context, std::size_t block, const void* x_in, float* saved, void* dx,
                      kernels::Write write, float* cheap = nullptr) const;

  /// Final norm, projection to the vocabulary and cross-entropy, in chunks of rows. loss += the sum over rows of the loss
  /// (targets below 0 do not count). With gradients: dx[R,C] and the head's gradients of (gradient_scale * that sum).
  void head_forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                             kernels::LossSum& loss, void* dx, kernels::Write write) const;
  /// The loss alone; losses[R] of the host, if not null, gets that of each target once the stream is there.
  void head_loss(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
                 float* losses = nullptr) const;

  // Decoding: the forward pass over new tokens alone, with context.shape {1, R}. What blocks need of the tokens before, they
  // keep in caches. Scratch is of decoding_scratch_numel() floats, tables for all positions of the cache.

  /// Numbers of a block's cache, and floats of scratch for these stages.
  std::size_t cache_numel(const kernels::CacheShape& cache) const;
  std::size_t decoding_scratch_numel(const kernels::CacheShape& cache, DType type = DType::f32) const;
  /// x[R,C] from tokens[R].
  void embedding_decode(const StageContext& context, const std::int32_t* tokens, const DecodedRows& rows, void* x) const;
  /// block_forward() of these rows, whose keys and values go into the block's `cache`. `saved` as there, contents lost.
  void block_decode(const StageContext& context, std::size_t block, const DecodedRows& rows, const void* x_in, void* x_out,
                    float* saved, const kernels::CacheShape& shape, void* cache, float* cheap = nullptr) const;
  /// logits[rows.size(),V], in memory of the host, of these rows of x: at most as many as the cache has sequences.
  void head_logits(const StageContext& context, const void* x, std::span<const std::int32_t> rows, float* logits) const;

 private:
  /// `attend` makes attention's result of what the block saves, in which queries, keys and values are there, not rotated.
  template <class E, class Attend>
  void forward_block(const StageContext& context, std::size_t block, const E* x_in, E* x_out, float* saved, float* cheap,
                     const Attend& attend) const;
  template <class E>
  void refill_block(const StageContext& context, std::size_t block, const E* x_in, float* saved, float* cheap) const;
  template <class E>
  void backward_block(const StageContext& context, std::size_t block, const E* x_in, float* saved, E* dx, kernels::Write write,
                      float* cheap) const;

  TransformerConfig config_;
  DeviceTraits device_;
  ModelParameters model_;
};

}  // namespace fsdp
