// A kind of operation is a constant of type Kind. It has the operands and the effects on them, the function that runs the
// operation, its cost, and facts for the checkers of plans. The executor, the checkers, and the code that counts or draws a
// plan use only these constants. The constants are defined in lib/run/operations/; docs/extending-operation.md shows how to add
// one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "nn/work.hpp"
#include "optim/optimizer.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// What an operation does to an operand.
enum class Effect : std::uint8_t {
  reads,        // needs the content and does not change it
  changes,      // needs the content and replaces it; a skipped update keeps it
  overwrites,   // replaces the whole content without reading it
  consumes,     // needs the content, and the content is undefined afterwards
  clobbers,     // scratch: needs no content, and the content is undefined afterwards
  accumulates,  // like `changes` if Operation::accumulate is true, else like `overwrites`
  contributes   // like `accumulates`, but later writes of the same micro-batch always add
};

/// The part of the model that an operation works on. The subject determines which of the fields unit, stage and block of
/// Operation are set. `owner` is the unit or the block that an offloaded buffer belongs to.
enum class Subject : std::uint8_t { nothing, unit, first_stage, block, head, owner };

/// The part of an update that the time of an operation is counted in, and that drawings show it in. `again` recomputes
/// activations.
enum class UpdatePart : std::uint8_t { gather, forward, again, backward, reduce, optimizer, transfer, rounding, other };
/// The name of a part in files: "gather", "forward", ... part_named() returns nothing for other names.
std::string_view name_of(UpdatePart part);
std::optional<UpdatePart> part_named(std::string_view name);
/// The shape of an operation in the drawing of timeline.hpp.
enum class Drawing : std::uint8_t { not_at_all, briefly, as_forward, as_backward, as_transfer };

/// The argument of functions that checkers call: an operation and, if the function is about an operand, the operand's `index`
/// among operands of the same name.
struct Query {
  const Plan& plan;
  const Layout& layout;
  const Placement& placement;
  const ModelSizes& sizes;
  const Operation& op;
  std::span<const std::size_t> units;  // the operation's unit, or the units of its stage
  std::size_t index = 0;

  const Unit& unit() const { return layout.units()[static_cast<std::size_t>(op.unit)]; }
  std::size_t shard_numel() const { return layout.shard_numel(static_cast<std::size_t>(op.unit)); }
  /// Returns true if each rank of the shard axis updates a part of the unit.
  bool is_scattered() const { return unit().sharded && unit().shards > 1 && placement.optimizer_state == Place::sharded; }
};

/// The place that an operand must have, and the operand's size in bytes. If place.buffer is -1, the operand may be in any
/// buffer with this role (with any role if `role` is not set).
struct Home {
  Location place;
  std::size_t bytes = 0;
  std::optional<BufferRole> role = {};
};

/// What memory contains at one time, if several units, stages or micro-batches share it. `owner` is the unit or the stage that
/// the content belongs to; -1: none.
struct Content {
  OperandName what;
  int owner = -1, micro_batch = 0;
  bool operator==(const Content&) const = default;
};

/// What the name of an operand determines. operations/operands.cpp has the table.
struct OperandInfo {
  OperandName name;
  std::string_view text;
  /// The place that the operand must have. Returns nothing if the operation must not have this operand, for example `positions`
  /// if batches have no documents.
  std::optional<Home> (*home)(const Query&);
  /// For memory that several units, stages or micro-batches share: `holds` is the content that the operation expects, and
  /// `leaves` is the content after the operation. `holds` is null for other memory.
  Content (*holds)(const Query&) = nullptr;
  Content (*leaves)(const Query&) = nullptr;  // null: like `holds`
  bool repeated = false;                      // several operands have this name: index 0, 1, ... until home() returns nothing
};
const OperandInfo& info_of(OperandName name);

struct OperandSpec {
  OperandName name;
  Effect effect;
  bool (*needed)(const Query&) = nullptr;  // null: always
  bool optional = false;                   // the plan may omit it
};

/// The amount of work of an operation: the values that the fields with the same names in Operation must have.
struct Amount {
  std::size_t count = 0;
  DType type = DType::f32, reduce_dtype = DType::f32;
  GroupAxis group = GroupAxis::shard;
};

/// The inputs of a cost function. Collectives, loads and unloads have none, because their cost is the bytes that they move: see
/// collective_of() and Operation::bytes().
struct Costing {
  const Layout& layout;
  const StageWork& stages;
  const OptimizerOptions& optimizer;
  std::size_t blocks_in_pieces = 0;  // of the plan
};

struct Running;        // operations/running.hpp
class GradientStates;  // check/gradient_states.hpp

struct Kind {
  std::string_view name;
  UpdatePart part;
  Subject subject;
  std::span<const OperandSpec> operands;  // in the order of Operation::operands
  void (*run)(const Running&);
  Cost (*cost)(const Operation&, const Costing&);               // null: none
  Amount (*amount)(const Query&) = nullptr;                     // null: Amount()
  void (*follow)(GradientStates&, const Operation&) = nullptr;  // the checks that concern gradients; null: none
  Drawing drawing = Drawing::not_at_all;
  char letter = ' ';
  std::optional<Collective> collective = std::nullopt;  // if Operation::count > 0: a block may gather nothing
};

/// The cost of an operation by its kind; nothing for collectives, loads and unloads.
inline Cost cost_by_kind(const Operation& op, const Costing& costing) {
  return op.kind->cost ? op.kind->cost(op, costing) : Cost();
}
/// Returns true if the time of an operation counts as the optimizer's, with the roundings of state.
inline bool is_of_optimizer(const Operation& op) {
  return op.kind->part == UpdatePart::optimizer || op.kind->part == UpdatePart::rounding;
}

/// The effect on operand `i` of an operation.
Effect effect_on(const Operation& op, std::size_t i);
constexpr bool writes(Effect effect) { return effect != Effect::reads; }
/// Returns true if an operation with this effect needs the content of the operand. For `contributes`, the answer is that for
/// the first write of a micro-batch.
inline bool needs_content(const Operation& op, Effect effect) {
  switch (effect) {
    case Effect::reads:
    case Effect::changes:
    case Effect::consumes:
      return true;
    case Effect::accumulates:
    case Effect::contributes:
      return op.accumulate;
    case Effect::overwrites:
    case Effect::clobbers:
      break;
  }
  return false;
}
/// Returns true if ranks communicate in the operation.
inline bool is_collective(const Operation& op) { return op.kind->collective.has_value() && op.count > 0; }
/// The places that an operation reads, and those that it writes. A place can be both.
std::vector<Location> reads_of(const Operation& op);
std::vector<Location> writes_of(const Operation& op);

/// The library's kinds.
namespace kinds {
// operations/stages.cpp
extern const Kind read_batch, embedding_forward, block_forward;
extern const Kind head;             // final norm, projection, loss, and their backward pass
extern const Kind head_loss;        // in evaluation: without the backward pass
extern const Kind recompute;        // repeats a block's forward pass to get its saved activations
extern const Kind recompute_cheap;  // selective checkpointing: recomputes the part of a block's activations that was not saved
extern const Kind block_backward, embedding_backward;
/// The same as `head` and `block_backward`, without gradients of parameters.
extern const Kind head_for_inputs, block_backward_for_inputs;
extern const Kind read_rows;  // copies the new tokens of a decoding step to the device
extern const Kind embedding_decode;
extern const Kind block_decode;  // a block's forward pass for new tokens; adds their keys and values to the cache
extern const Kind head_logits;   // computes logits, only for tokens whose next token is wanted
// operations/collectives.cpp
extern const Kind all_gather_parameters, all_gather_directions;
extern const Kind release;  // the slot of a unit's parameters becomes free
extern const Kind reduce_scatter_gradient, reduce_scatter_directions;
extern const Kind all_reduce_gradient, all_reduce_directions, all_reduce_statistics, all_reduce_squares, all_reduce_loss;
// For a loss that sees the rows of all ranks: the outputs of the last block, their targets, and the sum of their gradients, of
// which each rank adds its part to the gradient of its own outputs.
extern const Kind gather_outputs, gather_targets, scatter_outputs;
// operations/gradients.cpp
extern const Kind clear;          // sets a unit's unreduced gradient to zero, so that backward can add to it
extern const Kind sum_gradients;  // invariant plans: adds one partial sum of a unit's gradient to another, or copies it
/// Adds the squares of this rank's part of a unit's gradient to the update's sums. Of state, only counts what is not finite.
extern const Kind add_squares;
extern const Kind gradient_norm;  // computes the norm from the update's sums over all ranks
extern const Kind clip_values;    // clips each element of this rank's part of a unit's gradient to a value
// operations/rounding.cpp
extern const Kind round;  // rounds this rank's parameters of a unit from fp32 to the type for gathers and computation
extern const Kind upcast_gradient, upcast_master;  // convert this rank's bf16 state of a unit to fp32
/// Round fp32 numbers to bf16 stochastically, so that the expected value stays the same, and set the fp32 numbers to the
/// rounded ones.
extern const Kind round_whole_gradient, round_gradient, round_master;
/// Round the complete sum of a gradient, and add the squares of the rounded numbers as add_squares does. The fp32 numbers are
/// undefined afterwards.
extern const Kind round_whole_gradient_and_square, round_gradient_and_square;
// operations/optimizer.cpp
extern const Kind statistics;        // LAMB, Adafactor: this rank's part of the sums over a unit's whole tensors, in one round
extern const Kind directions;        // Muon: computes this rank's part of the matrices from which a unit's update is computed
extern const Kind whole_matrices;    // Muon: processes the matrices that this rank owns, and sets the others to zero
extern const Kind optimizer;         // updates a unit; in low precision it also rounds the changed parameters
extern const Kind optimizer_16_bit;  // updates a unit whose parameters, gradient and states are bf16, in one pass
extern const Kind average;           // moves the average of a unit's parameters to their new values
// operations/transfers.cpp
extern const Kind load;    // copies an offloaded buffer to its slot on the device
extern const Kind unload;  // copies the changed content of that slot to the offloaded buffer
}  // namespace kinds

}  // namespace fsdp
