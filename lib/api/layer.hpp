// The interfaces for a user's own layer or loss: its parameters, its forward pass and its backward pass over tensors that the
// library provides. A layer knows nothing of ranks or shards: when it is called, its parameters are gathered, and the library
// sums its gradients over the ranks. docs/api.md develops and trains an example.
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

#include "api/tensor.hpp"
#include "nn/init.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

class Stream;

/// A parameter of a layer. Its full name in checkpoints is the layer's name, a dot, and this one: "blocks.3.gate.weight".
struct LayerParameter {
  std::string name;
  Shape shape;  // row-major; as a Tensor it is [shape[0], product of the others]; a vector is [1, n]
  Init init;    // normal(standard deviation) or constant(value)
};

/// The input of every pass over a layer. All pointers are valid only during the pass.
struct Pass {
  std::size_t B = 0, T = 0;          // the number of sequences, and of positions in each
  DType type = DType::f32;           // of parameters, activations and saved numbers; parameter gradients are fp32
  Tensor x;                          // [R, inputs()]; none if the layer takes tokens
  const std::int32_t* tokens = {};   // [R], if the layer takes tokens
  Tensor scratch;                    // [R, scratch()]; its contents are lost after the pass
  std::uint64_t update = 0;          // from 1; 0 in an evaluation
  std::uint64_t first_sequence = 0;  // the number of this rank's first sequence among all sequences of the update
  std::uint64_t seed = 0;            // FsdpOptions::seed

  std::size_t rows() const { return B * T; }
  /// Parameter i of Layer::parameters(), gathered. Throws UserError if there is none.
  Tensor parameter(std::size_t i) const;

  // For the operations of ops.hpp: the stream on which they run, memory for partial sums and for gradients of parameters that
  // are not trained, and the most columns of either.
  Stream* stream = nullptr;
  float *sums = nullptr, *unwanted = nullptr;
  std::size_t most_columns = 0;
  const void* const* weights = nullptr;
  std::span<const LayerParameter> parameters;
};

/// Forward must write all of y and saved.
struct ForwardPass : Pass {
  Tensor y;      // [R, outputs()]
  Tensor saved;  // [R, saved()]: numbers that backward needs besides x, in the pass's type
  Tensor stats;  // [R, saved_floats()]: more of these, in fp32
};

/// Backward must write all of dx, and add to the gradients.
struct BackwardPass : Pass {
  Tensor dy;     // [R, outputs()]
  Tensor dx;     // [R, inputs()]; none if the layer takes tokens
  Tensor saved;  // as forward wrote it; backward may overwrite it
  Tensor stats;
  /// The fp32 gradient of parameter i: add to it. None if the parameter is not trained.
  Tensor gradient(std::size_t i) const;

  float* const* gradients = nullptr;
};

class Layer {
 public:
  virtual ~Layer() = default;
  /// Must return the same list at each call.
  virtual std::vector<LayerParameter> parameters() const { return {}; }
  /// The number of values per row of its input and output.
  virtual std::size_t inputs() const = 0;
  virtual std::size_t outputs() const = 0;
  /// Returns true if the layer takes the batch's tokens instead of numbers; then inputs() is 1. Only the first layer of a model
  /// may take tokens, and such a layer saves nothing.
  virtual bool takes_tokens() const { return false; }
  /// For a layer that takes tokens: all tokens must be below this, else the batch is refused. 0: no limit.
  virtual std::size_t vocabulary() const { return 0; }
  /// The number of values per row that forward saves for backward, besides x: in the pass's type, and in fp32.
  virtual std::size_t saved() const { return 0; }
  virtual std::size_t saved_floats() const { return 0; }
  /// The number of values per row that a pass needs as scratch.
  virtual std::size_t scratch() const { return 0; }
  /// Returns true if the passes support this type, or GPUs. Passes that use only the operations of ops.hpp support both. Loops
  /// over Tensor::get() and set() support all types on CPUs; loops over row() and floats() support fp32 only.
  virtual bool works_in(DType type) const { return type == DType::f32; }
  virtual bool works_on_gpu() const { return false; }

  /// An exception in these ends the job: see FullyShardedDataParallel. Several ranks may call both at the same time, and
  /// recomputation calls forward again with the same x: so they must depend only on the pass.
  virtual void forward(const ForwardPass& pass) const = 0;
  virtual void backward(const BackwardPass& pass) const = 0;
};

/// The pass that computes the loss of each row, and the gradient of their sum times `scale`.
struct LossPass : Pass {
  const std::int32_t* labels = {};  // [R, targets()], if the loss takes labels
  Tensor targets;                   // [R, targets()] in fp32, otherwise
  float* losses = nullptr;          // [R]: write all; 0 for rows that do not count
  Tensor dx;                        // [R, inputs()]: write all; none in an evaluation
  float scale = 1;
  Tensor gradient(std::size_t i) const;  // add to it; none if the parameter is not trained, and in an evaluation

  float* const* gradients = nullptr;
};

/// The end of a model. Training minimizes the mean over the rows that count, of all ranks and micro-batches of an update.
class Loss {
 public:
  virtual ~Loss() = default;
  virtual std::vector<LayerParameter> parameters() const { return {}; }
  virtual std::size_t inputs() const = 0;
  /// Returns true if it takes integers (labels), false if it takes numbers (targets).
  virtual bool takes_labels() const = 0;
  /// All labels must be below this, else the batch is refused. 0: no limit.
  virtual std::size_t classes() const { return 0; }
  virtual std::size_t targets() const { return 1; }
  virtual std::size_t scratch() const { return 0; }
  virtual bool works_in(DType type) const { return type == DType::f32; }
  virtual bool works_on_gpu() const { return false; }
  virtual void evaluate(const LossPass& pass) const = 0;
};

using LayerPtr = std::shared_ptr<const Layer>;
using LossPtr = std::shared_ptr<const Loss>;

}  // namespace fsdp
