// A model is a list of stages. The first stage turns the inputs of a batch into activations, each block transforms the
// activations of the stage before it, and the last stage computes the loss. A stage only does arithmetic on memory that the
// caller provides: it owns no memory, does not depend on ranks, units or shards, and does not allocate. Transformer
// (transformer.hpp) is a model, and so is a chain of user-defined layers (layers/chain.hpp). Letters as in docs/glossary.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "kernels/loss_sum.hpp"
#include "nn/named_input.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

class Collectives;

/// The size of one micro-batch on one rank.
struct BatchShape {
  std::size_t B = 0, T = 0;
  std::size_t rows() const { return B * T; }
};

/// The content of a batch per row, in elements of 4 bytes.
struct RowSizes {
  std::size_t inputs = 1, targets = 1;
  bool tokens = true, labels = true;  // inputs are token numbers; targets are labels (negative: not counted). false: floats
  std::size_t vocabulary = 0, classes = 0;  // upper bounds of tokens and labels; 0: unknown
  /// If the model has several inputs: the inputs of a batch are those of the first one, [B length, columns], then those of the
  /// next one, and so on. `inputs` and `vocabulary` are then 0, and `tokens` is false.
  std::vector<NamedInput> named = {};

  /// The elements of the inputs of a batch.
  std::size_t inputs_of(BatchShape shape) const {
    std::size_t numbers = shape.rows() * inputs;
    for (const NamedInput& input : named) numbers += shape.B * input.numbers();
    return numbers;
  }
};

/// Receives the outputs of a layer inside a stage. `place` identifies the layer; a model without such layers ignores this.
struct InnerOutput {
  std::uint64_t place = 0;
  std::vector<std::byte> numbers = {};  // of type StageContext::type, once the stream has done the work
};

/// Dropout of an update, placed as in Hugging Face's GPT-2: `residual` after the embedding and on each branch before it is
/// added to the residual stream (embd_pdrop, resid_pdrop), `attention` on the attention probabilities (attn_pdrop). `adapters`
/// is that of the inputs of adapters, and at most Lora::dropout. The masks depend only on seed, update and global indices:
/// sequence s of the micro-batch is sequence first_sequence + s of the update.
/// `neftune_alpha` adds noise to the embedding, before its dropout (kernels::EmbeddingNoise).
struct Dropout {
  float residual = 0, attention = 0, adapters = 0;  // rates in [0, 1)
  float neftune_alpha = 0;                          // 0: no noise
  std::uint32_t seed = 0;
  std::uint64_t update = 0, first_sequence = 0;
};

/// The rows of all ranks, in the order of the ranks, for a loss that sees them: outputs of the last block, their targets, and
/// memory for the gradient of these outputs. This rank's rows begin at row rank * shape.rows().
struct RowsOfAllRanks {
  const void* outputs = nullptr;
  const std::int32_t* targets = nullptr;
  float* gradient = nullptr;  // null in an evaluation
  std::size_t rank = 0;
};

/// For layers that gather numbers of all ranks during their passes: the group that communicates on the stage's stream, and
/// memory for ModelSizes::gathered_in_layers bytes. Both are null if the pass does not gather. Only
/// `group` is null in check_gradients(), which is one rank.
struct GathersOfLayers {
  Collectives* group = nullptr;
  float* memory = nullptr;
};

/// The arguments of a stage. weights[p] and gradients[p] point to parameter p, contiguous in its stored shape. weights[p] is
/// valid only for the parameters of the stage, and gradients[p] is null if its gradient is not needed. Weights and activations
/// have type `type`; gradients of parameters are fp32. `scratch` has ModelSizes::scratch bytes without content; `tables` are
/// from PositionTables. Evaluation keeps the default `dropout`; backward and recomputation must use that of forward.
/// `loss_terms` are those of LossStage::forward_backward(); other models than Transformer do not have them. `positions`: [R] or
/// null (see kernels::AttentionShape). With positions, each document of a sequence is computed as a separate sequence. `cheap`
/// is the memory for the part of a block's saved activations that is cheap to recompute (Recomputation). If it is null, this
/// part is in `saved`, after the other part. `in_pieces`: `saved` has nothing of the block's MLP, of which only some rows exist
/// at a time, in scratch; see ModelSizes. `longest`: the T that the memory was sized for, if it is not that of `shape`; 0: it
/// is. `following`: the number of later micro-batches of the update.
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
  kernels::LossTerms loss_terms = {};
  float* cheap = nullptr;
  bool in_pieces = false;
  std::size_t longest = 0;
  RowsOfAllRanks all = {};
  InnerOutput* inner = nullptr;          // not null: a forward pass writes it, if it runs that layer
  const std::int32_t* inputs = nullptr;  // of the batch, for a block that reads them (ModelSizes::input_blocks)
  GathersOfLayers layers = {};
  std::size_t following = 0;

  BatchShape largest() const { return {shape.B, std::max(shape.T, longest)}; }
};

/// The tokens of a decoding step: row r is at position positions[r] of sequence sequences[r] in the key-value caches. Earlier
/// positions of the sequence are in the caches already, or are earlier rows of the step. The rows of a sequence are adjacent
/// and in order. sequences_there and positions_there are the same numbers in device memory.
struct DecodedRows {
  std::span<const std::int32_t> sequences, positions;
  const std::int32_t *sequences_there, *positions_there;
  /// For the last block: the rows of which the output is used, in ascending order, each the last row of its sequence. Not set:
  /// all rows.
  std::optional<std::span<const std::int32_t>> wanted = {};

  std::size_t wanted_count() const { return wanted ? wanted->size() : sequences.size(); }
  std::size_t wanted_row(std::size_t i) const { return wanted ? static_cast<std::size_t>((*wanted)[i]) : i; }
};

/// The sizes of a model that a plan needs, in bytes, for one shape and type.
struct ModelSizes {
  std::vector<std::size_t> activations = {};  // output of the first stage, then of each block
  std::vector<std::size_t> saved = {};        // kept by each block from forward to backward, besides its input
  std::vector<std::size_t> kept = {};         // the part of `saved` that selective checkpointing keeps
  std::size_t scratch = 0;                    // enough for each stage
  /// The same if all blocks compute their MLP in several pieces of rows, in scratch. Empty and 0: all rows are one piece, or
  /// the model's blocks cannot do it.
  std::vector<std::size_t> saved_in_pieces = {};
  std::size_t scratch_in_pieces = 0;
  /// True if the forward pass of the first stage uses scratch memory, and if its backward pass reads parameters. Forward of
  /// all other stages uses scratch, and backward of all but embedding_blocks reads parameters.
  bool first_uses_scratch = false, first_backward_reads = false;
  std::size_t inputs = 0, targets = 0;    // of a batch, with elements of 4 bytes
  std::size_t gathered_from = 0;          // the ranks whose rows the loss sees, if it sees more than its own; else 0
  std::vector<std::size_t> gathers = {};  // fp32 numbers that each pass of a block gathers from each rank; empty: none
  std::size_t gathered_in_layers = 0;     // for the numbers of all ranks that any block gathers
  DType type = DType::f32;                // of activations
  std::size_t losses = 0, logits = 0;     // losses: of the rows of a batch; logits: of one row
  std::size_t tables = 0;                 // of PositionTables
  std::vector<std::size_t> cache = {};    // of each block, if the plan decodes
  std::vector<std::vector<std::size_t>> stages =
      {};  // indices of the parameters that each stage reads: first stage, blocks, head
  /// The blocks that read the inputs of the batch, and those of them whose backward pass reads no parameters.
  std::vector<int> input_blocks = {}, embedding_blocks = {};

  std::size_t blocks() const { return saved.size(); }
  bool reads_inputs(int block) const { return std::ranges::find(input_blocks, block) != input_blocks.end(); }
  bool backward_reads(int block) const { return std::ranges::find(embedding_blocks, block) == embedding_blocks.end(); }
  /// The numbers that the last block gives.
  std::size_t outputs() const { return activations.back() / size_of(type); }
};

/// A part of a model. Activations (x) and their gradients (dx) are arrays of type context.type.
struct Stage {
  Stage(std::string of_name, std::vector<std::size_t> read) : name(std::move(of_name)), reads(std::move(read)) {}
  Stage(const Stage&) = delete;
  virtual ~Stage() = default;

  const std::string name;                // in messages: "block 3", "layer 'fc1'"
  const std::vector<std::size_t> reads;  // indices of the parameters that it reads
};

struct InputStage : Stage {
  using Stage::Stage;
  /// Computes x from the batch's inputs.
  virtual void forward(const StageContext& context, const std::int32_t* inputs, void* x) const = 0;
  /// Computes the contributions of dx to the gradients of the stage's parameters. By `write`, a contribution overwrites a
  /// gradient or is added to it. If the last stage uses the parameter, too, the contribution is always added, because
  /// LossStage::forward_backward() has already written the gradient in this micro-batch.
  virtual void backward(const StageContext& context, const std::int32_t* inputs, const void* dx,
                        kernels::Write write) const = 0;
};

struct BlockStage : Stage {
  using Stage::Stage;
  /// Computes x_out from x_in, and fills `saved`. x_out must not be x_in. If x_out is null, only `saved` is computed
  /// (recomputation). With context.in_pieces, `saved` has nothing of the MLP, and backward() computes the MLP again.
  virtual void forward(const StageContext& context, const void* x_in, void* x_out, float* saved) const = 0;
  /// On entry, dx is the gradient of x_out; it is replaced by the gradient of x_in. By `write`, the gradients of the block's
  /// parameters are overwritten or added to. `saved` may be overwritten.
  virtual void backward(const StageContext& context, const void* x_in, float* saved, void* dx, kernels::Write write) const = 0;
};

struct LossStage : Stage {
  using Stage::Stage;
  /// Adds the losses of all targets that count to `loss`. Computes the gradients of (gradient_scale * the sum of these losses):
  /// dx, and those of the stage's parameters.
  virtual void forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                                kernels::LossSum& loss, void* dx, kernels::Write write) const = 0;
  /// Computes only the loss. losses[R] in host memory, if not null, receives the loss of each row once the stream has done the
  /// work.
  virtual void forward(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& loss,
                       float* losses = nullptr) const = 0;
};

/// Some of the saved activations of blocks (of norms and activation functions) are cheap to recompute.
struct Recomputation {
  virtual ~Recomputation() = default;
  /// Recomputes the cheap part from x_in and the kept part, bit-identical to BlockStage::forward().
  virtual void recompute_cheap(const StageContext& context, std::size_t block, const void* x_in, float* saved) const = 0;
};

struct PositionTables {
  virtual ~PositionTables() = default;
  /// The number of floats in the tables of positions 0 to T - 1.
  virtual std::size_t table_numel(std::size_t T) const = 0;
  /// Computes the tables for sequences of `length` tokens, rounded to `type`.
  virtual void fill_tables(std::span<float> tables, std::size_t T, std::size_t length, DType type) const = 0;
  /// Lengths with the same class have the same tables.
  virtual std::size_t table_class(std::size_t length) const = 0;
};

/// The forward pass over new tokens only, with context.shape {1, R}. Blocks keep the keys and values of earlier tokens in
/// caches. The position tables cover all positions of the cache.
struct Decoding {
  virtual ~Decoding() = default;
  /// Computes x[R,C] from tokens[R].
  virtual void embedding_decode(const StageContext& context, const std::int32_t* tokens, const DecodedRows& rows,
                                void* x) const = 0;
  /// Like BlockStage::forward() for these rows; the keys and values of all rows are written to the block's `cache`. `saved` is
  /// only scratch. If only some rows are wanted, the other rows of x_out are undefined.
  virtual void block_decode(const StageContext& context, std::size_t block, const DecodedRows& rows, const void* x_in,
                            void* x_out, float* saved, const kernels::CacheShape& shape, void* cache) const = 0;
  /// Computes logits[rows.size(),V] in host memory for these rows of x: at most as many as the cache has sequences.
  virtual void head_logits(const StageContext& context, const void* x, std::span<const std::int32_t> rows,
                           float* logits) const = 0;
};

struct TransformerConfig;  // nn/config.hpp

class Model {
 public:
  Model(const Model&) = delete;
  virtual ~Model() = default;

  /// `type`: of weights and activations. `cache`: not empty if the plan decodes.
  virtual ModelSizes sizes(BatchShape shape, DType type, const kernels::CacheShape& cache) const = 0;
  /// Throws UserError if the model does not support this batch or cache.
  virtual void check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const = 0;

  /// The device that the model is for, which sizes depend on. It need not exist.
  const DeviceTraits& device() const { return device_; }
  /// A parameter's index is its identity, and the key of the random numbers for its initial values.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// The first stage, the blocks, and the last stage. Operation::stage is an index of this list.
  const Stage& stage(std::size_t index) const;
  std::vector<std::vector<std::size_t>> parameters_by_stage() const;

  RowSizes row_sizes;
  std::vector<std::string> stage_names = {};  // those of a user's layers; empty: the embedding, numbered blocks and the head
  /// Nothing depends on a later column of its sequence: columns after the last target that counts may be left out.
  bool takes_short_rows = false;
  bool sees_all_ranks = false;          // the loss of a row depends on the rows of all ranks
  bool layers_depend_on_ranks = false;  // layers have state (Parameter::momentum), or gather numbers of all ranks
  const TransformerConfig* transformer_config =
      nullptr;  // other programs can make this model from it; null: it has user-defined layers
  std::unique_ptr<const InputStage> first;
  std::vector<std::unique_ptr<const BlockStage>> blocks;
  std::unique_ptr<const LossStage> loss;
  // Null: the model has none.
  const Recomputation* recomputation = nullptr;
  const PositionTables* tables = nullptr;
  const Decoding* decoding = nullptr;

 protected:
  explicit Model(const DeviceTraits& device) : device_(device) {}

  DeviceTraits device_;
  std::vector<Parameter> parameters_;
};

}  // namespace fsdp
