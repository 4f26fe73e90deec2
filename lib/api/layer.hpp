// What a user writes to bring a layer or a loss of their own: its parameters, its forward pass and its backward pass over
// tensors that the library provides. A layer knows nothing of ranks or shards: when it is called, its parameters are whole, and
// what it writes as their gradients is summed over the ranks for it. docs/api.md shows one from its first line to its training.
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
  Shape shape;  // row-major; as a Tensor it is [shape[0], all others], and a vector is [1, n]
  Init init;    // normal(standard deviation) or constant(value)
};

/// What every pass over a layer is given. What it points to lives as long as the pass.
struct Pass {
  std::size_t B = 0, T = 0;          // sequences, and positions of each
  DType type = DType::f32;           // of parameters, activations and what is saved; gradients of parameters are fp32
  Tensor x;                          // [R, inputs()]; of a layer that takes tokens none
  const std::int32_t* tokens = {};   // [R], of a layer that takes tokens
  Tensor scratch;                    // [R, scratch()], contents lost after the pass
  std::uint64_t update = 0;          // counts from 1; 0 in an evaluation
  std::uint64_t first_sequence = 0;  // of all sequences of the update, the number of this rank's first one here
  std::uint64_t seed = 0;            // FsdpOptions::seed

  std::size_t rows() const { return B * T; }
  /// Parameter i of Layer::parameters(), whole. Throws UserError if there is none.
  Tensor parameter(std::size_t i) const;

  // For the operations of ops.hpp: the stream that they run on, memory for partial sums and for gradients that nobody wants,
  // and of how many columns these may be.
  Stream* stream = nullptr;
  float *sums = nullptr, *unwanted = nullptr;
  std::size_t most_columns = 0;
  const void* const* weights = nullptr;
  std::span<const LayerParameter> parameters;
};

/// Forward writes all of y and saved.
struct ForwardPass : Pass {
  Tensor y;      // [R, outputs()]
  Tensor saved;  // [R, saved()]: what backward needs beside x, in the pass's type
  Tensor stats;  // [R, saved_floats()]: the same in fp32
};

/// Backward writes all of dx, and adds to the gradients.
struct BackwardPass : Pass {
  Tensor dy;     // [R, outputs()]
  Tensor dx;     // [R, inputs()]; none for a layer that takes tokens
  Tensor saved;  // as forward wrote it; may be overwritten
  Tensor stats;
  /// Of parameter i, in fp32: add to it. None where the parameter is not trained.
  Tensor gradient(std::size_t i) const;

  float* const* gradients = nullptr;
};

class Layer {
 public:
  virtual ~Layer() = default;
  /// The same each time.
  virtual std::vector<LayerParameter> parameters() const { return {}; }
  /// Numbers of a row that it takes and gives.
  virtual std::size_t inputs() const = 0;
  virtual std::size_t outputs() const = 0;
  /// Whether it takes the batch's tokens instead of numbers; inputs() is 1 then. Only the first layer of a model
  /// may, and it saves nothing.
  virtual bool takes_tokens() const { return false; }
  /// Of such a layer: tokens are below it, and batches with others are refused. 0: any may come.
  virtual std::size_t vocabulary() const { return 0; }
  /// Numbers that forward keeps of a row for backward, beside x: of the pass's type, and in fp32.
  virtual std::size_t saved() const { return 0; }
  virtual std::size_t saved_floats() const { return 0; }
  /// Numbers of a row that a pass needs meanwhile.
  virtual std::size_t scratch() const { return 0; }
  /// Whether its passes work with numbers of this type, and on a GPU. Passes that are made of the operations of ops.hpp can do
  /// both. Loops over Tensor::get() and set() work in all types on CPUs, those over row() and floats() in fp32 alone.
  virtual bool works_in(DType type) const { return type == DType::f32; }
  virtual bool works_on_gpu() const { return false; }

  /// What they throw ends the job: see FullyShardedDataParallel. Both may be called by several ranks at a time, and by
  /// recomputation again with the same x: they depend on the pass alone.
  virtual void forward(const ForwardPass& pass) const = 0;
  virtual void backward(const BackwardPass& pass) const = 0;
};

/// The loss of each row, and the gradient of their sum times `scale`.
struct LossPass : Pass {
  const std::int32_t* labels = {};  // [R, targets()], of a loss that takes labels
  Tensor targets;                   // [R, targets()] in fp32, of any other
  float* losses = nullptr;          // [R]: write all; 0 for rows that do not count
  Tensor dx;                        // [R, inputs()]: write all, unless there is none (evaluation)
  float scale = 1;
  Tensor gradient(std::size_t i) const;  // add to it; none where the parameter is not trained, and in an evaluation

  float* const* gradients = nullptr;
};

/// The end of a model. What is trained on is the mean over the rows that count, of all ranks and micro-batches of an update.
class Loss {
 public:
  virtual ~Loss() = default;
  virtual std::vector<LayerParameter> parameters() const { return {}; }
  virtual std::size_t inputs() const = 0;
  /// Integers of a row that it is given, or numbers.
  virtual bool takes_labels() const = 0;
  /// Labels are below it, and batches with others are refused. 0: any may come.
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
