// What the library trains: a model as a chain of stages. The first stage makes activations of a batch's inputs, each block
// makes activations of the one before, and the head makes the loss. A stage is arithmetic on memory that the caller provides:
// it owns none, knows nothing of ranks, units or shards, and does not allocate. Transformer (transformer.hpp) is such a model,
// and so is a chain of layers that a user has written (in api/). Letters as in docs/glossary.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "kernels/loss_sum.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

/// The size of one micro-batch on one rank.
struct BatchShape {
  std::size_t B = 0, T = 0;
  std::size_t rows() const { return B * T; }
};

/// What a batch holds for each of its rows, in elements of 4 bytes.
struct RowSizes {
  std::size_t inputs = 1, targets = 1;
  bool tokens = true, labels = true;        // integers, of which a negative label does not count; else they are floats
  std::size_t vocabulary = 0, classes = 0;  // tokens and labels are below these; 0: unknown
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
/// parameters fp32. `scratch` holds ModelSizes::scratch bytes, contents lost; `tables` are of fill_tables(). An evaluation
/// leaves `dropout` as it is; backward and recomputation take forward's. `positions`: [R] or null; see kernels::AttentionShape.
/// With them each document of a sequence is computed as a sequence of its own.
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
  /// Of the last block: the only rows of its result that anybody reads, in ascending order.
  std::optional<std::span<const std::int32_t>> wanted = {};
};

/// What a plan needs to know of a model, in bytes, for one shape and type.
struct ModelSizes {
  std::vector<std::size_t> activations = {};          // what the first stage gives, then what each block gives
  std::vector<std::size_t> saved = {};                // what each block keeps from forward to backward, beside its input
  std::vector<std::size_t> kept = {};                 // the part of it that selective checkpointing keeps
  std::size_t scratch = 0;                            // of any stage
  std::size_t inputs = 0, targets = 0;                // of a batch, whose elements have 4 bytes
  std::size_t losses = 0, logits = 0;                 // of each row of a batch; of one row
  std::size_t tables = 0;                             // made once
  std::size_t cache = 0;                              // of a block, where the plan decodes
  std::vector<std::vector<std::size_t>> stages = {};  // parameters that each reads, by index: the first stage, blocks, the head

  std::size_t blocks() const { return saved.size(); }
};

struct TransformerConfig;  // nn/config.hpp

class Model {
 public:
  virtual ~Model() = default;

  /// Where it runs, or would run: sizes follow from it.
  virtual const DeviceTraits& device() const = 0;
  /// Their indices are their identity, and the key of their random numbers.
  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual std::size_t blocks() const = 0;
  virtual RowSizes row_sizes() const = 0;
  /// What other programs can make this model from; null where they cannot: it has layers of its program.
  virtual const TransformerConfig* transformer_config() const { return nullptr; }
  /// `type`: of weights and activations. `cache`: of a plan that decodes.
  virtual ModelSizes sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const = 0;
  /// Throws UserError if it cannot work on such batches, with such a cache.
  virtual void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const = 0;

  /// Floats of tables that are made once, for sequences up to T, and their contents, which are floats rounded to `type`.
  virtual std::size_t table_numel(std::size_t /*T*/) const { return 0; }
  virtual void fill_tables(std::span<float> /*tables*/, std::size_t /*T*/, DType /*type*/) const {}

  // Activations (x, dx) are given as pointers to numbers of context.type.

  /// x of the batch's inputs.
  virtual void embedding_forward(const StageContext& context, const std::int32_t* inputs, void* x) const = 0;
  /// Gradients of the first stage's parameters from dx. `write` overwrite: the first contribution of the update to these
  /// gradients; where a parameter is the head's, too, head_forward_backward's contribution of the same micro-batch already lies
  /// there and is added to.
  virtual void embedding_backward(const StageContext& context, const std::int32_t* inputs, const void* dx,
                                  kernels::Write write) const = 0;

  /// x_out = block(x_in); fills `saved`. x_out must not be x_in. Null: only what is saved is wanted (recomputation). `cheap`,
  /// here and below: where the cheap part of what is saved lies if not behind the kept one.
  virtual void block_forward(const StageContext& context, std::size_t block, const void* x_in, void* x_out, float* saved,
                             float* cheap = nullptr) const = 0;
  /// The cheap part from x_in and the kept part, with block_forward's bits.
  virtual void block_refill(const StageContext& context, std::size_t block, const void* x_in, float* saved,
                            float* cheap = nullptr) const = 0;
  /// dx, the gradient of x_out, becomes that of x_in; the block's gradients are written or added to. What is saved may be
  /// overwritten.
  virtual void block_backward(const StageContext& context, std::size_t block, const void* x_in, float* saved, void* dx,
                              kernels::Write write, float* cheap = nullptr) const = 0;

  /// loss += the sum over the targets that count; dx and the head's gradients of (gradient_scale * that sum).
  virtual void head_forward_backward(const StageContext& context, const void* x, const std::int32_t* targets,
                                     float gradient_scale, kernels::LossSum& loss, void* dx, kernels::Write write) const = 0;
  /// The loss alone; losses[R] of the host, if not null, gets that of each row once the stream is there.
  virtual void head_loss(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
                         float* losses = nullptr) const = 0;

  // Decoding: the forward pass over new tokens alone, with context.shape {1, R}. What blocks need of the tokens before, they
  // keep in caches. Tables are for all positions of the cache. Only models whose check_batch() lets a cache pass have these.

  /// x[R,C] from tokens[R].
  virtual void embedding_decode(const StageContext& context, const std::int32_t* tokens, const DecodedRows& rows,
                                void* x) const;
  /// block_forward() of these rows, whose keys and values go into the block's `cache`. `saved` as there, contents lost. Where
  /// only some rows are wanted, the others of x_out have no meaning.
  virtual void block_decode(const StageContext& context, std::size_t block, const DecodedRows& rows, const void* x_in,
                            void* x_out, float* saved, const kernels::CacheShape& shape, void* cache,
                            float* cheap = nullptr) const;
  /// logits[rows.size(),V], in memory of the host, of these rows of x: at most as many as the cache has sequences.
  virtual void head_logits(const StageContext& context, const void* x, std::span<const std::int32_t> rows, float* logits) const;
};

}  // namespace fsdp
