// A kind of operation is a row: its operands with their effects, what runs it, what it costs, and what a checker needs to know.
// The executor runs rows, the checkers walk them, and all that counts or draws a plan reads them. The rows are in operations/;
// docs/extending-operation.md adds one.
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

/// What an operation is about; Operation::unit, stage and block follow from it.
enum class Subject : std::uint8_t { nothing, unit, first_stage, block, head };

/// What the time of an operation counts as.
enum class Account : std::uint8_t { model, communication, optimizer, offload };
/// How an operation is drawn: see timeline.hpp.
enum class Drawing : std::uint8_t { not_at_all, briefly, as_forward, as_backward, as_transfer };

/// What a checker asks about an operation, or about its operand number `index` of a name.
struct Query {
  const Plan& plan;
  const Layout& layout;
  const Placement& placement;
  const ModelSizes& sizes;
  const Operation& op;
  std::span<const std::size_t> units;  // that it is about: its unit, or those of its stage
  std::size_t index = 0;

  const Unit& unit() const { return layout.units()[static_cast<std::size_t>(op.unit)]; }
  /// Each rank of the shard axis updates a part of the unit.
  bool is_scattered() const { return unit().sharded && unit().shards > 1 && placement.optimizer_state == Place::sharded; }
};

/// Where an operand has to be, and its bytes; a buffer of -1: where its content is, in a buffer of this role.
struct Home {
  Location place;
  std::size_t bytes = 0;
  std::optional<BufferRole> role = {};
};

/// What a range of memory holds that several things take in turn: of which unit or stage (-1: of none), in which micro-batch.
struct Content {
  OperandName what;
  int owner = -1, micro_batch = 0;
  bool operator==(const Content&) const = default;
};

/// What is known of an operand by its name: a row in operations/operands.cpp.
struct OperandInfo {
  OperandName name;
  std::string_view text;
  /// Nothing if the operation must not have it: no positions without documents, for example.
  std::optional<Home> (*home)(const Query&);
  /// What an operation finds there and leaves there, if things take turns there; null: nothing else is ever there.
  Content (*holds)(const Query&) = nullptr;
  Content (*leaves)(const Query&) = nullptr;  // null: as `holds`
  bool repeated = false;                      // one for each index until there is no home
};
const OperandInfo& info_of(OperandName name);

struct OperandSpec {
  OperandName name;
  Effect effect;
  bool (*needed)(const Query&) = nullptr;  // null: always
  bool optional = false;                   // the plan may do without
};

/// How much an operation works on: the fields of Operation with these names.
struct Amount {
  std::size_t count = 0;
  DType type = DType::f32, travel = DType::f32;
  GroupAxis group = GroupAxis::shard;
};

/// What the cost of an operation follows from. A collective, a load or an unload costs what it moves: see collective_of() and
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
  std::span<const OperandSpec> operands;  // in the order in which an operation has them
  void (*run)(const Running&);
  Cost (*cost)(const Operation&, const Costing&);
  Amount (*amount)(const Query&) = nullptr;                     // null: Amount()
  void (*follow)(GradientStates&, const Operation&) = nullptr;  // its step in the protocol of gradients
  Drawing drawing = Drawing::not_at_all;
  char letter = ' ';
  std::optional<Collective> collective = std::nullopt;
};

/// The effect on operand `i` of an operation.
Effect effect_on(const Operation& op, std::size_t i);
constexpr bool writes(Effect effect) { return effect != Effect::reads; }
/// Whether the operation needs what is there. The first contribution of a micro-batch does not, either, if it is the first to
/// this gradient.
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
/// Whether ranks exchange something in it.
inline bool is_collective(const Operation& op) { return op.kind->collective.has_value(); }
/// The places that an operation needs, and those that it writes; one may be both.
std::vector<Location> reads_of(const Operation& op);
std::vector<Location> writes_of(const Operation& op);

/// The library's kinds.
namespace kinds {
// operations/stages.cpp
extern const Kind read_batch, embedding_forward, block_forward;
extern const Kind head;       // final norm, projection, loss, and their backward pass
extern const Kind head_loss;  // in evaluation: without the backward pass
extern const Kind recompute;  // a block's forward pass once more, for what it saves
extern const Kind refill;     // the cheap part of what a block saves, from the part that was kept
extern const Kind block_backward, embedding_backward;
// operations/decoding.cpp
extern const Kind read_rows;  // the new tokens of a step of decoding
extern const Kind embedding_decode;
extern const Kind block_decode;  // of new tokens, whose keys and values join those in the block's cache
extern const Kind head_logits;   // of the tokens whose successors are wanted
// operations/collectives.cpp
extern const Kind all_gather_parameters, all_gather_directions;
extern const Kind release;  // the slot of a unit's parameters may be used again
extern const Kind reduce_scatter_gradient, reduce_scatter_directions;
extern const Kind all_reduce_gradient, all_reduce_directions, all_reduce_statistics, all_reduce_squares, all_reduce_loss;
// operations/gradients.cpp
extern const Kind clear;          // a unit's gradient slot becomes zero, to be added to
extern const Kind sum_gradients;  // a unit's gradient in some micro-batches -> where its sum over others is, or will be
extern const Kind add_squares;    // the squares of what a rank has of a unit's gradient, added to the update's sums
extern const Kind gradient_norm;  // what follows from the update's sums, once they are over all ranks
extern const Kind clip_values;    // what a rank has of a unit's gradient, each element limited to a value
// operations/rounding.cpp
extern const Kind round;  // what a rank owns of a unit's parameters: fp32 -> the type that is gathered and computed with
extern const Kind upcast_gradient, upcast_master;  // what a rank keeps in bf16 of a unit -> fp32, for the next operations
/// fp32 -> what is kept in bf16, up or down, with the same expected value; then the fp32 numbers are these, too.
extern const Kind round_whole_gradient, round_gradient, round_master;
// operations/optimizer.cpp
extern const Kind statistics;      // in a round, what a rank has of a unit's sums over whole tensors
extern const Kind directions;      // what a rank has of that from which whole matrices make a unit's update
extern const Kind whole_matrices;  // the work on those matrices that this rank owns; the others become zero
extern const Kind optimizer;       // a unit's update; in low precision it also rounds what it has changed
// operations/transfers.cpp
extern const Kind load;    // what a rank keeps of a unit on the host -> its slot on the device
extern const Kind unload;  // what operations have changed in that slot -> the host
}  // namespace kinds

}  // namespace fsdp
