// What an operation runs with: its stream, its operands, the numbers of the update, and what does not change during a run.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "comm/mesh.hpp"
#include "fsdp/kind.hpp"
#include "fsdp/layout.hpp"
#include "nn/model.hpp"

namespace fsdp {

/// What changes from update to update.
struct UpdateScalars {
  std::uint64_t update = 1;  // counts from 1
  double learning_rate = 0;
  double clip_norm = 0;           // 0: no clipping
  double clip_value = 0;          // the most that an element of the gradient may be; of plans that clip values
  std::uint64_t state_began = 0;  // the update after which the optimizer's states were zero
  Dropout dropout = {};           // first_sequence: of this rank's first micro-batch; others are as many ranks further each
  double tokens = 0;              // targets that count, of the whole update over all ranks
  /// What gradients are multiplied by from the loss to the optimizer, a power of 2: fp16 loses small ones.
  double loss_scale = 1;
  /// An update whose loss or norm is above is left out, as one that is not finite.
  double most_loss = std::numeric_limits<double>::infinity(), most_norm = std::numeric_limits<double>::infinity();
};

/// A step of decoding: row r is tokens[r] at positions[r] of sequences[r] of the caches, as in DecodedRows. `wanted` are the
/// rows whose successors are asked for, at most as many as the caches have sequences.
struct DecodingStep {
  std::span<const std::int32_t> tokens, sequences, positions, wanted;
};

/// How a micro-batch is stored on the host, in bytes: inputs, then targets, then, if the plan has documents, positions[R], see
/// kernels::AttentionShape. Of a Transformer these are inputs[R] and targets[R], tokens. The elements of other models may be
/// floats, in the same memory.
struct BatchLayout {
  std::size_t inputs = 0, targets = 0, positions = 0;
  std::size_t bytes() const { return inputs + targets + positions; }
};

/// What all operations of a rank work with.
struct RankFacts {
  const Model& model;
  const Layout& layout;
  const Plan& plan;
  BatchShape shape;
  OptimizerOptions optimizer;
  ModelSizes sizes;
  const Mesh* mesh;
  std::size_t shard;                     // this rank's index on the shard axis
  std::vector<std::byte*> memory;        // of each buffer
  std::vector<const void*> weights;      // of each parameter: where it is when its unit is gathered
  std::vector<float*> gradients;         // of each parameter
  std::vector<UnitParts> parts;          // of each unit, of this rank
  std::vector<std::vector<int>> owners;  // of each unit's matrices, if it has work on them

  template <class T>
  T* at(const Location& place) const {
    return reinterpret_cast<T*>(memory[static_cast<std::size_t>(place.buffer)] + place.offset + shard * place.per_shard);
  }
  BatchLayout batch() const {
    return {sizes.inputs, sizes.targets, plan.positions >= 0 ? shape.rows() * sizeof(std::int32_t) : 0};
  }
  const UnitTypes& types() const { return layout.units().front().types; }  // of all units
};

struct Running {
  const RankFacts& rank;
  Stream& stream;
  const Operation& op;
  const UpdateScalars& scalars;
  const DecodingStep& step;  // in the memory of the operand of this name
  std::size_t batch_begin;   // of this list's micro-batches in the operand `tokens`

  /// An operand's memory; one that the operation does not have: null.
  template <class T = void>
  T* at(OperandName name, std::size_t index = 0) const {
    const Location* const place = op.find(name, index);
    return place ? rank.at<T>(*place) : nullptr;
  }
  const Unit& unit() const { return rank.layout.units()[static_cast<std::size_t>(op.unit)]; }
  const UnitParts& parts() const { return rank.parts[static_cast<std::size_t>(op.unit)]; }
  kernels::Write write() const { return op.accumulate ? kernels::Write::add : kernels::Write::overwrite; }
};

}  // namespace fsdp
