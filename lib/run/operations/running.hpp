// The arguments of an operation (struct Running): its stream, its operands, the scalars of the update, and the data that does
// not change during a run.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "comm/mesh.hpp"
#include "nn/model.hpp"
#include "plan/kind.hpp"
#include "plan/layout.hpp"

namespace fsdp {

/// The values that change from update to update.
struct UpdateScalars {
  std::uint64_t update = 1;  // counts from 1
  double learning_rate = 0;
  double clip_norm = 0;           // 0: no clipping
  double clip_value = 0;          // limit for each element of the gradient, if the plan clips values
  std::uint64_t state_began = 0;  // the optimizer's states were last zero after this update; 0: before the first
  Dropout dropout = {};           // first_sequence is that of micro-batch 0 of this rank
  kernels::LossTerms loss_terms = {};
  double ema_decay = 0;  // of the average of the parameters, if the plan has one; 0: the average becomes a copy
  double tokens = 0;     // the number of targets that count, in the whole update over all ranks
  /// Gradients are multiplied by this power of 2 until the optimizer divides by it, because fp16 loses small numbers.
  double loss_scale = 1;
  /// An update with a larger loss or norm is skipped, like one that is not finite.
  double most_loss = std::numeric_limits<double>::infinity(), most_norm = std::numeric_limits<double>::infinity();
};

/// A decoding step: row r is token tokens[r], at position positions[r] of sequence sequences[r] in the caches (see
/// DecodedRows). `wanted` lists the rows whose logits are needed, at most as many as the caches have sequences. `length` is the
/// number of tokens of the rows' sequences, including those that are not in the caches yet. Sequences whose lengths differ in
/// PositionTables::table_class() cannot be in the same step, and all tokens of a sequence must be run again when its class
/// changes.
struct DecodingStep {
  std::span<const std::int32_t> tokens, sequences, positions, wanted;
  std::size_t length = 0;
};

/// The layout of a micro-batch on the host, in bytes: inputs, then targets, then, if the plan has documents, positions[R] (see
/// kernels::AttentionShape). For a Transformer, inputs[R] and targets[R] are tokens. Other models may store floats in the same
/// memory.
struct BatchLayout {
  std::size_t inputs = 0, targets = 0, positions = 0;
  std::size_t bytes() const { return inputs + targets + positions; }
};

/// The data that all operations of a rank share.
struct RankFacts {
  const Model& model;
  const Layout& layout;
  const Plan& plan;
  BatchShape largest;    // the shape that the plan was made for; a micro-batch may have fewer columns (Running::shape)
  BatchShape evaluated;  // the same for an evaluation; T is that of `largest`
  OptimizerOptions optimizer;
  ModelSizes sizes;
  const Mesh* mesh;
  std::size_t shard;                     // this rank's index on the shard axis
  std::vector<Storage*> storages;        // of each buffer
  std::vector<std::byte*> memory;        // address of each buffer; null if its storage has none
  std::vector<const void*> weights;      // address of each parameter when its unit is gathered
  std::vector<float*> gradients;         // address of each parameter's gradient
  std::vector<float*> no_gradients;      // null for each parameter
  std::vector<UnitParts> parts;          // this rank's part of each unit
  std::vector<std::vector<int>> owners;  // owners of each unit's matrices, if its rule works on whole matrices

  template <class T>
  T* at(const Location& place) const {
    return reinterpret_cast<T*>(memory[static_cast<std::size_t>(place.buffer)] + place.offset + shard * place.per_shard);
  }
  Storage& storage_of(const Location& place) const { return *storages[static_cast<std::size_t>(place.buffer)]; }
  /// The first byte of the place in its storage.
  std::size_t begin_of(const Location& place) const {
    return plan.buffers[static_cast<std::size_t>(place.buffer)].offset + place.offset + shard * place.per_shard;
  }
  /// Of a batch with all columns, and B sequences.
  BatchLayout batch(std::size_t B) const {
    return {sizes.inputs / largest.B * B, sizes.targets / largest.B * B,
            plan.positions >= 0 ? B * largest.T * sizeof(std::int32_t) : 0};
  }
  const UnitTypes& types() const { return layout.types(); }
};

struct Running {
  const RankFacts& rank;
  Stream& stream;
  const Operation& op;
  const UpdateScalars& scalars;
  const DecodingStep& step;      // the current decoding step; the memory of the operand `step` has the same numbers
  std::size_t batch_begin;       // offset of this list's micro-batches in the operand `tokens`
  BatchShape shape;              // of the operation's micro-batch
  InnerOutput* inner = nullptr;  // StageContext::inner

  /// The address of an operand; null if the operation does not have it.
  template <class T = void>
  T* at(OperandName name, std::size_t index = 0) const {
    const Location* const place = op.find(name, index);
    return place ? rank.at<T>(*place) : nullptr;
  }
  const Unit& unit() const { return rank.layout.units()[static_cast<std::size_t>(op.unit)]; }
  /// Returns true if this rank adds the unit to sums over ranks: of a unit that all ranks of the shard axis hold whole, only
  /// one rank does.
  bool counts_unit() const { return unit().sharded || rank.shard == 0; }
  const UnitParts& parts() const { return rank.parts[static_cast<std::size_t>(op.unit)]; }
  kernels::Write write() const { return op.accumulate ? kernels::Write::add : kernels::Write::overwrite; }
};

}  // namespace fsdp
