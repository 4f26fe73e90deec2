// One update as data: a list of operations in issue order, each with the unit or block that it is about, its stream, the
// memory that it works on, and the earlier operations on other streams that it waits for. The executor runs it, a dry run
// prints it, and the memory of the run is computed from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "kernels/update_sums.hpp"
#include "nn/model.hpp"

namespace fsdp {

/// The last two have work if something is offloaded: each goes one way over the bus, so that both ways are used at once, and
/// neither holds up collectives.
enum class StreamId { compute, gather, reduce, load, unload };
inline constexpr std::size_t stream_count = 5;

struct Kind;  // kind.hpp: a row for each kind of operation

/// What an operation calls something that it works on. operations/operands.cpp has a row for each.
enum class OperandName : std::uint8_t {
  tokens,
  step,
  losses,
  logits,
  report,  // in the host's memory
  inputs,
  targets,
  positions,
  rows,
  tables,
  x,
  x_out,
  dx,
  saved,
  cheap,
  scratch,
  cache,
  weights,
  gradients,
  sums,
  squares,
  loss,
  part,
  master,
  kept_master,
  whole_gradient,
  gradient,
  kept_whole_gradient,
  kept_gradient,
  sum,
  from,
  to,
  states,
  words,
  words_before,
  words_out,
  all_words,
  direction,
  matrices,
  matrix_scratch,
  stored,
  slot
};

/// What a buffer is for: a line of the memory plan.
enum class BufferRole {
  parameters,
  gradients,
  optimizer_state,
  gathered_parameters,
  unreduced_gradients,
  activations,
  scratch,
  batch,
  cache,  // of keys and values
  loaded  // from the host
};
inline constexpr std::size_t role_count = 10;
std::string_view name_of(BufferRole role);
/// Slots for gathered parameters and unreduced gradients lie in memory that the communicator provides.
constexpr bool is_slot(BufferRole role) {
  return role == BufferRole::gathered_parameters || role == BufferRole::unreduced_gradients;
}

using BufferId = int;

/// What it takes to allocate memory: a rank's device, and the ranks of its shard group.
struct Means {
  Device& device;
  Collectives& shard_group;
};
/// A place for buffers: a row. spaces.cpp has the library's.
struct Space {
  std::string_view name;
  bool on_device;   // it counts against the device's memory, else against the host's
  bool collective;  // the ranks of a shard group open it together
  Buffer (*open)(const Means&, std::size_t bytes);
};
namespace spaces {
extern const Space device;
extern const Space slots;  // memory that the communicator provides, for gathered parameters and unreduced gradients
extern const Space host;   // which the device copies from and to
}  // namespace spaces
struct SpaceUse {
  const Space* space;
  std::size_t bytes;
};
/// Opens those spaces that the ranks of a shard group open together, or the others. memory[i] is that of uses[i].
void open_spaces(const std::vector<SpaceUse>& uses, const Means& means, bool collective, std::vector<Buffer>& memory);

/// A place in a buffer. A rank that owns a part of what is there finds its own `per_shard` bytes further for each rank before
/// it on the shard axis: so one plan serves all ranks.
struct Location {
  BufferId buffer = -1;
  std::size_t offset = 0, per_shard = 0;  // bytes

  Location() = default;
  Location(BufferId in, std::size_t bytes = 0, std::size_t bytes_per_shard = 0)
      : buffer(in), offset(bytes), per_shard(bytes_per_shard) {}
  bool operator==(const Location&) const = default;
};

struct PlanBuffer {
  std::string name;  // "x3", "P0", "shard block 2"
  BufferRole role;
  std::size_t bytes;
  bool transient = false;  // lives inside one micro-batch; else for the whole run
  const Space* space = &spaces::device;
  std::size_t offset = 0;  // in its space
  // If operations work on a loaded copy: the slot that it is loaded into, and the unit that it is of.
  Location slot = {};
  int unit = -1;

  /// Only loads and unloads touch it.
  bool is_offloaded() const { return slot.buffer >= 0; }
};

struct Operand {
  OperandName name;
  Location place;
  bool operator==(const Operand&) const = default;
};

/// One step of a list. It has all that it does: whoever runs it, checks it, counts it or draws it reads these fields.
struct Operation {
  const Kind* kind;
  StreamId stream;
  int micro_batch = 0;
  int unit = -1;            // whose parameters, gradient or directions it is about
  int stage = -1;           // 0 the embedding, 1 + b block b, then the head
  int block = -1;           // of stages that are blocks
  int round = 0;            // of statistics and their reduction
  bool accumulate = false;  // it adds to what it writes instead of replacing it

  // How much it works on, of collectives and of what goes over a unit.
  GroupAxis group = GroupAxis::shard;
  std::size_t count = 0;      // elements: of a rank's part in all-gather and reduce-scatter, else of all
  DType type = DType::f32;    // of what is read and written
  DType travel = DType::f32;  // what each rank's summands are rounded to on their way, if they are fp32

  std::vector<Operand> operands;                    // as its kind lists them
  std::vector<int> waits = {};                      // derived: indices of earlier operations on other streams
  bool awaited = false;                             // derived: a later operation waits for it
  std::vector<BufferId> acquires = {}, frees = {};  // derived: transient buffers that live from here, until here

  /// Of this rank's part of what a collective, a load or an unload moves.
  std::size_t bytes() const { return count * size_of(type); }
  /// Operand `index` of this name, if it has so many.
  const Location* find(OperandName name, std::size_t index = 0) const {
    for (const Operand& operand : operands)
      if (operand.name == name && index-- == 0) return &operand.place;
    return nullptr;
  }
  const Location& at(OperandName name) const;  // throws InternalError
};

/// What checkpointing keeps: the inputs of blocks, or what attention and the large products gave.
enum class CheckpointPolicy { block, selective };

/// When the next unit of backward is gathered: before the computation of the current one, after it, or when it is needed.
enum class BackwardPrefetch { pre, post, none };

struct PlanOptions {
  bool training = true;  // else evaluation alone: no gradients, no optimizer
  std::size_t micro_batches = 1;
  bool checkpoint_activations = false;
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::block;
  std::size_t checkpoint_every = 1;  // policy block: blocks per segment, of which the input alone is kept
  std::size_t parameter_slots = 2;   // gathered units at a time, beside those that stay: the rate limiter
  std::size_t gradient_slots = 2;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;       // gather the next unit before the computation of the current one; else when it is needed
  bool accumulate_unsharded = false;  // whole gradients between micro-batches, one reduction at the end (PyTorch's no_sync)
  bool clip_values = false;           // limit each element of the gradient
  // Sums over micro-batches and ranks go in the canonical order of all micro-batches of the update, where micro-batch k of rank
  // r is number k ranks + r: so what moves between `micro_batches` and a power of two of ranks changes no bit. Gradients are
  // reduced in every micro-batch then.
  bool invariant = false;
  std::size_t sums_for = 0;  // invariant: sums have the memory that so many micro-batches need; 0: as many as there are
  // Kept in the host's memory and not in the device's: what the optimizer works on, which is the gradients, its states and,
  // where parameters are computed with in another type, their fp32 copy; or all that, and the parameters at rest.
  bool offload_optimizer = false, offload_parameters = false;
  const Space* offload_to = &spaces::host;
  DType optimizer_state_type = DType::f32;  // of states that are as large as parameters
  kernels::CacheShape cache = {};           // the plan has a list for decoding, over caches of this shape, unless it is empty
  bool documents = false;                   // a batch says where documents begin, each of which is computed by itself
};

/// The content of Plan::sums.
using kernels::LossSum;
using kernels::UpdateSums;

/// Where the sections of an update end in its list: forward and backward of all micro-batches, with their reductions; then the
/// gradient's norm. The optimizer is the rest.
struct UpdateSections {
  std::size_t forward_backward = 0, gradient_norm = 0;
};

/// How many sums of a unit's gradient wait at most in a plan that is invariant. The order is that of a tree: a sum joins the
/// one before it once both are over equally many micro-batches, so that after micro-batch k one waits for each 1 in the binary
/// digits of k + 1. `joins_at_once`: an odd micro-batch joins as it is reduced; else it waits, too, while it is summed over
/// replicas.
std::size_t sums_at_once(std::size_t micro_batches, bool joins_at_once);

/// All streams are idle when a list of operations begins: waits order operations within a list alone.
struct Plan {
  std::vector<PlanBuffer> buffers;
  std::vector<Operation> update;      // all micro-batches, then norm and optimizer; empty unless training
  UpdateSections sections;            // of it
  std::vector<Operation> evaluation;  // one batch, forward only, over the same buffers
  std::vector<Operation> decoding;    // new tokens of some sequences, forward only, over caches of keys and values; or empty
  std::vector<Operation> publish;     // after the parameters that a rank owns have changed otherwise than by `update`

  // Per unit: the parameters that this rank owns and the optimizer updates; the parameters at rest in the type that is computed
  // with, whole or this rank's part; the whole ones, once gathered; this rank's gradient and the whole one (-1: not trained).
  // Where parameters are computed with in the type of the master, both are one buffer. The operations say where they work; this
  // says whoever else asks: what saves and loads, and, by at_work(), the model's tables.
  std::vector<Location> master, parameters, whole_parameters, gradients, whole_gradients;
  std::vector<Location> kept_whole_gradients;  // between micro-batches, where whole gradients are kept then
  // If the update is of several micro-batches and invariant: where sums over some of them wait, beside `gradients`, which has
  // the first ones and in the end them all.
  bool sums_in_a_tree = false;
  std::vector<std::vector<Location>> waiting_sums;  // [unit]
  // Where operations on this rank's master and gradient find them in fp32: in place, or, where they are kept in bf16, in memory
  // that units take in turn.
  std::vector<Location> wide_master, wide_gradients;
  std::vector<std::vector<BufferId>> optimizer_state;  // [unit][state of its rule]; none: not trained
  BufferId cheap = -1;                 // of every block's saved part what selective checkpointing does not keep; else -1
  std::vector<BufferId> statistics;    // of each round; as many as the rules of trained units have
  std::size_t directions_at_once = 2;  // units whose matrices are worked on together
  BufferId scratch = -1, inputs = -1, targets = -1, tables = -1, sums = -1;
  BufferId positions = -1;         // of each token in its document, if a batch has several; else -1
  kernels::CacheShape cache = {};  // of the buffers `caches`, one for each block, if the plan decodes
  std::vector<BufferId> caches;
  BufferId rows = -1;            // which tokens a step of decoding has: sequences[R], then positions[R]
  BufferId matrix_scratch = -1;  // of work on whole matrices
  // In the host's memory: what is read of each micro-batch (of an update and, in a second half, of the next one), tokens,
  // sequences and positions of a step of decoding, the logits of its rows, the loss of each row of an evaluation, and the
  // update's sums once they are known.
  BufferId tokens = -1, step = -1, logits = -1, losses = -1, report = -1;

  /// How much of each space to allocate, in the order of their first buffers.
  std::vector<SpaceUse> spaces;
  std::size_t peak_bytes = 0;  // most that is in use of the device at one time
  std::size_t bytes_in(const Space& space) const;
  /// Of what is loaded before operations work on it, and of the batch and results on the host.
  std::size_t offloaded_bytes() const;
  std::size_t batch_bytes() const;

  /// Where operations find what is kept at `place`: at `place` itself, or, if its buffer is offloaded, in the slot that it is
  /// loaded into.
  Location at_work(const Location& place) const {
    if (place.buffer < 0 || !buffers[static_cast<std::size_t>(place.buffer)].is_offloaded()) return place;
    const Location& slot = buffers[static_cast<std::size_t>(place.buffer)].slot;
    return {slot.buffer, slot.offset + place.offset, place.per_shard};
  }
  bool whole_at_rest(std::size_t unit) const { return whole_parameters[unit].buffer == parameters[unit].buffer; }
};

/// Pure function; throws InternalError if the options contradict each other.
Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options);

/// A number that two plans share only if they issue the same collectives in the same order: ranks compare it before the first
/// step.
std::uint64_t collective_fingerprint(const Plan& plan);

/// "forward block 3", "all-gather root", "reduce-scatter root, add".
std::string title_of(const Operation& op, const Layout& layout);
std::string_view name_of(StreamId stream);
/// The operations as a table: number, stream, operation, reads, writes, waits. Of more than three micro-batches the first two
/// and the last one; of more than six buffers two.
std::string describe_operations(const Plan& plan, const std::vector<Operation>& operations, const Layout& layout);
/// Bytes per role, indexed by BufferRole, of the device's memory and of what is offloaded. Activations count at their peak;
/// everything else lives for the whole run. They add up to peak_bytes, and to offloaded_bytes().
std::array<std::size_t, role_count> memory_by_role(const Plan& plan);
std::array<std::size_t, role_count> offloaded_by_role(const Plan& plan);
/// Bytes per role, and the sum; what is on the host apart.
std::string describe_memory(const Plan& plan);

}  // namespace fsdp
