// A kind of operation is a row: its operands and the effects on them, the function that runs it, its cost, and the facts that
// the checkers need. The executor, the checkers, and the code that counts or draws a plan use only these rows. The rows are
// defined in operations/; docs/extending-operation.md shows how to add one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"
#include "nn/work.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

/// What an operation does to an operand.
enum class Effect : std::uint8_t {
  reads,        // needs the content and keeps it
  changes,      // needs the content and leaves another one, or keeps it if the update is not applied
  overwrites,   // everything is new
  consumes,     // needs the content and leaves rubbish
  clobbers,     // rubbish before and after
  accumulates,  // overwrites; if the operation accumulates, changes
  contributes   // as accumulates, but only the first contribution of a micro-batch overwrites
};

/// The part of the model that an operation works on. Operation::unit, stage and block follow from it.
enum class Subject : std::uint8_t { nothing, unit, first_stage, block, head };

/// The category of an operation's time.
enum class Account : std::uint8_t { model, communication, optimizer, offload };
/// How an operation is drawn: see timeline.hpp.
enum class Drawing : std::uint8_t { not_at_all, briefly, as_forward, as_backward, as_transfer };

/// The argument of a checker's questions about an operation, or about operand number `index` among those of one name.
struct Query {
  const Plan& plan;
  const Layout& layout;
  const Placement& placement;
  const ModelSizes& sizes;
  const Operation& op;
  std::span<const std::size_t> units;  // the operation's unit, or the units of its stage
  std::size_t index = 0;

  const Unit& unit() const { return layout.units()[static_cast<std::size_t>(op.unit)]; }
  /// Returns true if each rank of the shard axis updates a part of the unit.
  bool is_scattered() const { return unit().sharded && unit().shards > 1 && placement.optimizer_state == Place::sharded; }
};

/// The place that an operand must have, and its size. A buffer of -1 means: in any buffer of this role, where the content is.
struct Home {
  Location place;
  std::size_t bytes = 0;
  std::optional<BufferRole> role = {};
};

/// The content of memory that several things share in turn: its unit or stage (-1: none) and its micro-batch.
struct Content {
  OperandName what;
  int owner = -1, micro_batch = 0;
  bool operator==(const Content&) const = default;
};

/// The facts that follow from the name of an operand: a row in operations/operands.cpp.
struct OperandInfo {
  OperandName name;
  std::string_view text;
  /// Returns nothing if the operation must not have the operand, for example positions without documents.
  std::optional<Home> (*home)(const Query&);
  /// If the memory is shared in turn: the content that the operation expects and the content that it leaves. Null: not shared.
  Content (*holds)(const Query&) = nullptr;
  Content (*leaves)(const Query&) = nullptr;  // null: as `holds`
  bool repeated = false;                      // one operand per index, until `home` returns nothing
};
const OperandInfo& info_of(OperandName name);

struct OperandSpec {
  OperandName name;
  Effect effect;
  bool (*needed)(const Query&) = nullptr;  // null: always
  bool optional = false;                   // the plan may omit it
};

/// The amount of work of an operation: the fields of Operation with these names.
struct Amount {
  std::size_t count = 0;
  DType type = DType::f32, reduce_dtype = DType::f32;
  GroupAxis group = GroupAxis::shard;
};

/// The inputs of a cost function. A collective, load or unload costs the bytes that it moves: see collective_of() and
/// Operation::bytes().
struct Costing {
  const Layout& layout;
  const StageWork& stages;
  const OptimizerOptions& optimizer;
};

struct Running;        // operations/running.hpp
class GradientStates;  // check/gradient_states.hpp

struct Kind {
  std::string_view name;
  Account account;
  Subject subject;
  std::span<const OperandSpec> operands;  // in the order of Operation::operands
  void (*run)(const Running&);
  Cost (*cost)(const Operation&, const Costing&);
  Amount (*amount)(const Query&) = nullptr;                     // null: Amount()
  void (*follow)(GradientStates&, const Operation&) = nullptr;  // its effect on the state of gradients, for the checker
  Drawing drawing = Drawing::not_at_all;
  char letter = ' ';
  std::optional<Collective> collective = std::nullopt;
};

/// The effect on operand `i` of an operation.
Effect effect_on(const Operation& op, std::size_t i);
constexpr bool writes(Effect effect) { return effect != Effect::reads; }
/// Returns true if the operation needs the content of the operand. The first contribution of a micro-batch to a gradient does
/// not, unless the operation accumulates.
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
inline bool is_collective(const Operation& op) { return op.kind->collective.has_value(); }
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
extern const Kind recompute_cheap;  // recomputes the cheap part of a block's saved activations from the kept part
extern const Kind block_backward, embedding_backward;
// operations/decoding.cpp
extern const Kind read_rows;  // the new tokens of a step of decoding
extern const Kind embedding_decode;
extern const Kind block_decode;  // for new tokens: their keys and values are added to the block's cache
extern const Kind head_logits;   // for the tokens whose successors are wanted
// operations/collectives.cpp
extern const Kind all_gather_parameters, all_gather_directions;
extern const Kind release;  // the slot of a unit's parameters becomes free
extern const Kind reduce_scatter_gradient, reduce_scatter_directions;
extern const Kind all_reduce_gradient, all_reduce_directions, all_reduce_statistics, all_reduce_squares, all_reduce_loss;
// operations/gradients.cpp
extern const Kind clear;          // sets a unit's gradient slot to zero, before additions
extern const Kind sum_gradients;  // adds a unit's gradient over some micro-batches to its sum over others, or begins that sum
extern const Kind add_squares;    // adds the squares of this rank's part of a unit's gradient to the update's sums
extern const Kind gradient_norm;  // computes the norm from the update's sums over all ranks
extern const Kind clip_values;    // clips each element of this rank's part of a unit's gradient to a value
// operations/rounding.cpp
extern const Kind round;  // rounds this rank's parameters of a unit from fp32 to the type for gathers and computation
extern const Kind upcast_gradient, upcast_master;  // converts this rank's bf16 state of a unit to fp32 for the next operations
/// Round fp32 to bf16 stochastically (the expected value is the same), and set the fp32 numbers to the rounded ones.
extern const Kind round_whole_gradient, round_gradient, round_master;
// operations/optimizer.cpp
extern const Kind statistics;      // in a round: this rank's part of a unit's sums over whole tensors
extern const Kind directions;      // this rank's part of the matrices from which a unit's update is computed
extern const Kind whole_matrices;  // the work on the matrices that this rank owns; the others become zero
extern const Kind optimizer;       // a unit's update; in low precision it also rounds the changed parameters
// operations/transfers.cpp
extern const Kind load;    // copies a rank's state of a unit from the host to its slot on the device
extern const Kind unload;  // copies the changed state from that slot to the host
}  // namespace kinds

}  // namespace fsdp
