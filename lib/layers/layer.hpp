// The interfaces of a user's own layer or loss: its parameters, and its forward and backward passes over tensors that the
// library provides. A layer does not depend on shards, and on other ranks only if it gathers (Pass::gather()): the library
// gathers its parameters before it is called, and sums its gradients over the ranks afterwards. docs/api.md has an example.
//
// Rows. A batch of B sequences of T positions has R = B*T rows, and a layer maps [R, inputs()] to [R, outputs()]. Row r is
// position r mod T of sequence r / T. A model without sequences has T = 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layers/tensor.hpp"
#include "nn/init.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

class Proof;
class Stream;
struct Gathering;
struct InnerOutput;

/// A parameter of a layer. Its full name in checkpoints is LAYER.NAME: parameter "gate.weight" of layer "blocks.3" is
/// "blocks.3.gate.weight".
struct LayerParameter {
  /// `trained`: by the optimizer. `constant`: never, such as a table that is given (a buffer of PyTorch); unfreeze() refuses
  /// it. `state`: numbers in fp32 that training moves, such as running means (a buffer that forward() changes, in PyTorch).
  /// After an update, a state is (1 - momentum) state + momentum next, once for each micro-batch in their order, where `next`
  /// is the mean over the ranks of what backward() writes to BackwardPass::next(). Neither recomputation nor an update that is
  /// skipped moves it. It is in no norm of gradients, and has no decay, no learning rate and no average (EMA). freeze() stops
  /// it. Checkpoints and load_full() treat it as a parameter.
  enum class Kind { trained, constant, state };

  std::string name;           // "weight"
  Shape shape;                // row-major; its Tensor is [shape[0], product of the other sizes], or [1, n] for a vector
  Init init;                  // normal(standard deviation) or constant(value)
  Kind kind = Kind::trained;  // what changes it
  float momentum = 0.1f;      // of a state, in (0, 1]
};

/// The sizes of a batch and the job, on which sizes of memory may depend.
struct BatchSizes {
  std::size_t B = 0, T = 0;  // the number of sequences, and of positions in each sequence
  DType type = DType::f32;   // of parameters, activations and `saved`; gradients of parameters are fp32
  std::size_t threads = 1;   // of a rank on a CPU
  bool on_gpu = false;       // the passes run on a GPU
  std::size_t ranks = 1;     // of the job

  std::size_t rows() const { return B * T; }  // R
  bool operator==(const BatchSizes&) const = default;
};
/// The memory of a layer or a loss, in numbers per row.
struct MemorySizes {
  std::size_t saved = 0, saved_floats = 0, scratch = 0;  // as Layer::saved(), saved_floats() and scratch()
};

/// The arguments that forward, backward and loss passes have in common. All pointers are valid only during the pass.
struct Pass : BatchSizes {
  Tensor x;                          // [R, inputs()]; none if the layer takes tokens
  const std::int32_t* tokens = {};   // [R, inputs()], if the layer takes tokens
  Tensor scratch;                    // [R, sizes().scratch]; its contents are lost after the pass
  std::uint64_t update = 0;          // the number of the update, from 1; 0 in evaluate() and all that runs no update
  std::uint64_t first_sequence = 0;  // the number of this rank's first sequence among all sequences of the update
  std::uint64_t seed = 0;            // FsdpOptions::seed
  std::uint64_t place = 0;           // a hash of the layer's full name, for random numbers that differ between layers

  /// The rows of sequence b in a tensor with a row for each position of each sequence, such as x: a view [T, columns]. Throws
  /// UserError if b is too large, or if the tensor has another number of rows.
  Tensor sequence(const Tensor& tensor, std::size_t b) const;
  /// Parameter i of Layer::parameters(), gathered; of a state, its value before the update. A pass must only read it. Throws
  /// UserError if i is too large.
  Tensor parameter(std::size_t i) const;
  /// Returns false in evaluate(), predict() and input_gradients(). backward() must work there, too.
  bool training() const { return trains; }
  /// Collective over all ranks, in passes that train. Gathers `mine`, n fp32 numbers without gaps, of all ranks: [ranks, n] in
  /// the order of the ranks, valid during the pass. Throws UserError in other passes, in losses, and if more numbers are passed
  /// than Layer::gathers() returns.
  Tensor gather(const Tensor& mine) const;

  InnerOutput* inner = nullptr;  // only for Composition, which copies the outputs of the layer that predict_layer() names

  /// Only for the operations of ops.hpp: the `stream` on which they run; memory for partial sums (`sums`) and for gradients of
  /// parameters that are not trained (`unwanted`); the largest number of columns for which both have room (`most_columns`); and
  /// the `weights` of the `parameters`.
  Stream* stream = nullptr;
  float *sums = nullptr, *unwanted = nullptr;
  std::size_t most_columns = 0;
  const void* const* weights = nullptr;        // of the model
  std::span<const LayerParameter> parameters;  // of the layer
  std::span<const std::size_t> indices;        // of each of them among the parameters of the model
  Proof* proof = nullptr;                      // only for the library: checks the passes of the first update
  bool trains = false;                         // training()
  Gathering* gathering = nullptr;              // only for gather(): the numbers that this pass has gathered
};

/// Layer::forward() must write all of y, and in saved and stats all that backward() reads.
struct ForwardPass : Pass {
  Tensor y;      // [R, outputs()]
  Tensor saved;  // [R, sizes().saved]: numbers that backward needs besides x, in `type`
  Tensor stats;  // [R, sizes().saved_floats]: more such numbers, in fp32
};

/// Layer::backward() must write all of dx and of next(), and add to the gradients. In
/// FullyShardedDataParallel::input_gradients(), there are none, and `update` is 0.
struct BackwardPass : Pass {
  Tensor dy;     // [R, outputs()]
  Tensor dx;     // [R, inputs()]; none if the layer takes tokens
  Tensor saved;  // the numbers that forward wrote; backward may overwrite them
  Tensor stats;  // likewise
  /// The fp32 gradient of parameter i, to which backward must add. None if the parameter is not trained.
  Tensor gradient(std::size_t i) const;
  /// The fp32 memory for what state i moves to: see LayerParameter::Kind. backward() must write all of it. None if the state is
  /// frozen, and outside of training. Throws UserError if parameter i is no state.
  Tensor next(std::size_t i) const;

  float* const* gradients = nullptr;     // only for the operations of ops.hpp
  float* nexts = nullptr;                // only for next(): memory
  const std::size_t* next_at = nullptr;  // and where the state of each parameter of the model begins
};

/// A layer. docs/api.md has an example. Its functions are not collective, except forward() and backward() of a layer that
/// gathers, in training.
class Layer {
 public:
  virtual ~Layer() = default;
  /// Must return the same list at each call.
  virtual std::vector<LayerParameter> parameters() const { return {}; }
  /// The numbers of values per row of the layer's input and output.
  virtual std::size_t inputs() const = 0;
  virtual std::size_t outputs() const = 0;
  /// Returns true if the input of the layer is the batch's tokens, or other indices: inputs() integers per row. Only the first
  /// layer of a model or a tower may take tokens, and its saved() and saved_floats() must be 0. Layers that parallel() joins
  /// count as one layer.
  virtual bool takes_tokens() const { return false; }
  /// For a layer that takes tokens: a batch is refused if one of its tokens is not below this number. 0: no limit.
  virtual std::size_t vocabulary() const { return 0; }
  /// The numbers of values per row that forward saves for backward besides x. saved() counts those in the type of the pass,
  /// saved_floats() those in fp32.
  virtual std::size_t saved() const { return 0; }
  virtual std::size_t saved_floats() const { return 0; }
  /// The number of values per row that a pass needs as scratch.
  virtual std::size_t scratch() const { return 0; }
  /// The three numbers above, if they depend on the batch: for example for a matrix with a column for each row of the batch.
  /// Must return the same numbers at each call with the same sizes.
  virtual MemorySizes sizes(const BatchSizes& /*batch*/) const { return {saved(), saved_floats(), scratch()}; }
  /// The number of fp32 numbers that a rank passes to all calls of Pass::gather() in one training forward(). backward() must
  /// pass as many. All ranks must make the same calls. A layer that gathers cannot take tokens.
  virtual std::size_t gathers() const { return 0; }
  /// works_in() returns true if the passes support `type`, works_on_gpu() if they support GPUs. Passes that use only the
  /// operations of ops.hpp support all types, and GPUs. Loops over Tensor::get() and set() support all types on CPUs; loops
  /// over row() and floats() support fp32 only.
  virtual bool works_in(DType type) const { return type == DType::f32; }
  virtual bool works_on_gpu() const { return false; }
  /// Returns false if no row of the output depends on a later position of its sequence, or on another sequence. If neither a
  /// layer nor the loss looks ahead, the loss takes one label per row, and the model has no towers, no state and no gathers, a
  /// pass has only the positions up to the last one of the batch that has a label: T is then smaller than
  /// FsdpOptions::sequence_length.
  virtual bool looks_ahead() const { return true; }
  /// Throws UserError if the layer does not support batches of B sequences of T positions. Called before training.
  virtual void check_batch(std::size_t /*B*/, std::size_t /*T*/) const {}

  /// The passes. If one of them throws, the job ends: see FullyShardedDataParallel. Their results must depend only on `pass`,
  /// because recomputation (activation checkpointing) calls forward again, and several ranks may call them at the same time.
  virtual void forward(const ForwardPass& pass) const = 0;
  virtual void backward(const BackwardPass& pass) const = 0;
};

/// The pass of a loss. It computes the loss of each row, and the gradient of `scale` times the sum of these losses.
struct LossPass : Pass {
  const std::int32_t* labels = {};  // [R, targets()], if the loss takes labels
  Tensor targets;                   // [R, targets()] in fp32, if it takes numbers
  float* losses = nullptr;          // [R]: the pass writes the loss of each row, 0 for rows that do not count; from -2^20 to
                                    // 2^20: sums count others as the nearer limit
  Tensor dx;                        // [R, inputs()]: the pass writes the gradient of x; none if it is not needed
  float scale = 1;                  // the factor of the gradients
  /// Only for a loss that sees all ranks (Loss::sees_all_ranks()): x and labels or targets of all ranks, in their order, with R
  /// rows each. This rank's are those from row first_row on. The pass also adds to d_all the gradient of its own
  /// losses with respect to `all`; it is zero at first, and none in an evaluation. If the loss reads a row from x, its gradient
  /// is in dx; if it reads it from `all`, in d_all.
  std::size_t first_row = 0;
  Tensor all, d_all;                         // [ranks R, inputs()]; d_all in fp32
  std::span<const std::int32_t> all_labels;  // [ranks R, targets()]
  Tensor all_targets;                        // likewise
  Tensor gradient(std::size_t i) const;      // add to it; none if the parameter is not trained or in an evaluation

  float* const* gradients = nullptr;  // only for the operations of ops.hpp
};

/// The last part of a model. Training minimizes the mean loss of the rows that count, over all ranks and micro-batches of an
/// update. Rows with a negative label do not count; rows with numeric targets all count.
class Loss {
 public:
  virtual ~Loss() = default;
  virtual std::vector<LayerParameter> parameters() const { return {}; }  // most losses have none; no state
  virtual std::size_t inputs() const = 0;                                // values per row of the last layer's output
  /// Returns true if the loss takes integers (labels), false if it takes numbers (targets).
  virtual bool takes_labels() const = 0;
  /// A batch is refused if one of its labels is not below this number. 0: no limit.
  virtual std::size_t classes() const { return 0; }
  /// For a loss that takes labels: rows with this label do not count, as rows with a negative label. The library replaces it
  /// by -1 before the loss and metrics receive the batch.
  virtual std::int32_t ignore_index() const { return -1; }
  /// For a loss that takes labels: the weight of a row in the mean, from the row's first label. The mean is the sum of
  /// LossPass::losses, which must contain this factor, divided by the sum of the weights of all rows that count.
  virtual double weight(std::int32_t /*label*/) const { return 1; }
  virtual std::size_t targets() const { return 1; }  // labels or targets per row
  /// Returns false if the loss of a row does not depend on rows without labels: see Layer::looks_ahead().
  virtual bool looks_ahead() const { return true; }
  /// Returns true if the loss of a row depends on the rows of other ranks in the same micro-batch, as contrastive losses do
  /// (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"). All rows are then gathered
  /// before each pass, and the gradients are summed over the ranks. looks_ahead() must be true.
  virtual bool sees_all_ranks() const { return false; }
  /// scratch(), sizes(), works_in() and works_on_gpu() are as in Layer. A loss saves nothing.
  virtual std::size_t scratch() const { return 0; }
  virtual MemorySizes sizes(const BatchSizes& /*batch*/) const { return {.scratch = scratch()}; }
  virtual bool works_in(DType type) const { return type == DType::f32; }
  virtual bool works_on_gpu() const { return false; }
  /// Computes losses and gradients, as LossPass says. The rules are those of Layer::forward().
  virtual void evaluate(const LossPass& pass) const = 0;
  /// As Layer::check_batch().
  virtual void check_batch(std::size_t /*B*/, std::size_t /*T*/) const {}
};

/// LayerPtr and LossPtr: several models may share a layer or a loss.
using LayerPtr = std::shared_ptr<const Layer>;
using LossPtr = std::shared_ptr<const Loss>;

}  // namespace fsdp
