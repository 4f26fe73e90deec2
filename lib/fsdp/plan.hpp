// A plan is one update as data: a list of operations in issue order. Each operation has its unit or block, its stream, its
// operands in memory, and the earlier operations on other streams that it waits for. The executor runs the list, a dry run
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

/// `load` and `unload` have work only if state is offloaded. Each is one direction of the bus, so that both directions are used
/// simultaneously and neither delays collectives.
enum class StreamId { compute, gather, reduce, load, unload };
inline constexpr std::size_t stream_count = 5;

struct Kind;  // kind.hpp: a row for each kind of operation

/// The role of an operand in an operation. operations/operands.cpp has a row for each name.
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

/// The purpose of a buffer: a line of the memory plan.
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
  loaded  // copies of offloaded state
};
inline constexpr std::size_t role_count = 10;
std::string_view name_of(BufferRole role);
/// Returns true for gathered parameters and unreduced gradients. Their slots are in memory that the communicator provides.
constexpr bool is_slot(BufferRole role) {
  return role == BufferRole::gathered_parameters || role == BufferRole::unreduced_gradients;
}

using BufferId = int;

/// The resources for allocating memory: a rank's device, and its shard group.
struct Means {
  Device& device;
  Collectives& shard_group;
};
/// A place for buffers: one row. spaces.cpp defines the library's rows.
struct Space {
  std::string_view name;
  bool on_device;   // its bytes count as device memory, else as host memory
  bool collective;  // the ranks of a shard group open it together
  Buffer (*open)(const Means&, std::size_t bytes);
};
namespace spaces {
extern const Space device;
extern const Space slots;  // memory that the communicator provides, for gathered parameters and unreduced gradients
extern const Space host;   // memory that the device copies from and to
}  // namespace spaces
struct SpaceUse {
  const Space* space;
  std::size_t bytes;
};
/// Opens the spaces with this value of `collective`. memory[i] receives the memory of uses[i].
void open_spaces(const std::vector<SpaceUse>& uses, const Means& means, bool collective, std::vector<Buffer>& memory);

/// A place in a buffer. If ranks own parts of the content, the part of a rank starts `per_shard` bytes further for each rank
/// before it on the shard axis. So one plan serves all ranks.
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
  // If the buffer is offloaded: the slot that its content is loaded into, and the content's unit.
  Location slot = {};
  int unit = -1;

  /// Returns true if only loads and unloads access this buffer.
  bool is_offloaded() const { return slot.buffer >= 0; }
};

struct Operand {
  OperandName name;
  Location place;
  bool operator==(const Operand&) const = default;
};

/// One step of a list. These fields describe it completely for the code that runs, checks, counts or draws it.
struct Operation {
  const Kind* kind;
  StreamId stream;
  int micro_batch = 0;
  int unit = -1;            // of the parameters, gradient or directions that it works on
  int stage = -1;           // 0 the embedding, 1 + b block b, then the head
  int block = -1;           // for stages that are blocks
  int round = 0;            // for statistics and their reduction
  bool accumulate = false;  // it adds to what it writes instead of replacing it

  // The amount of work, for collectives and operations on a whole unit.
  GroupAxis group = GroupAxis::shard;
  std::size_t count = 0;            // elements: of one rank's part in all-gather and reduce-scatter, else of all
  DType type = DType::f32;          // of the elements read and written
  DType reduce_dtype = DType::f32;  // fp32 summands are rounded to this type before they are sent

  std::vector<Operand> operands;                    // in the order of its kind's operands
  std::vector<int> waits = {};                      // derived: indices of earlier operations on other streams
  bool awaited = false;                             // derived: a later operation waits for it
  std::vector<BufferId> acquires = {}, frees = {};  // derived: transient buffers whose lifetime begins or ends here

  /// The bytes of this rank's part of a collective, load or unload.
  std::size_t bytes() const { return count * size_of(type); }
  /// Operand number `index` among those of this name; null if there is none.
  const Location* find(OperandName name, std::size_t index = 0) const {
    for (const Operand& operand : operands)
      if (operand.name == name && index-- == 0) return &operand.place;
    return nullptr;
  }
  const Location& at(OperandName name) const;  // throws InternalError
};

/// What activation checkpointing keeps: only the inputs of blocks, or also the outputs of attention and large matrix products.
enum class CheckpointPolicy { block, selective };

/// When backward gathers its next unit: before or after the computation of the current one, or only when it is needed.
enum class BackwardPrefetch { pre, post, none };

struct PlanOptions {
  bool training = true;  // false: evaluation only, without gradients and optimizer
  std::size_t micro_batches = 1;
  bool checkpoint_activations = false;
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::block;
  std::size_t checkpoint_every = 1;  // policy block: the number of blocks per segment; only a segment's input is kept
  std::size_t parameter_slots = 2;   // gathered units at a time, besides those that stay gathered: the rate limiter
  std::size_t gradient_slots = 2;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;  // gather the next unit before the computation of the current one; else only when it is needed
  bool accumulate_unsharded =
      false;                 // keep whole gradients between micro-batches and reduce once at the end (PyTorch's no_sync)
  bool clip_values = false;  // clip each element of the gradient
  // Sums over micro-batches and ranks use the canonical order of all micro-batches of the update, in which micro-batch k of
  // rank r is number k * ranks + r. So a different split of the batch between `micro_batches` and a power of two of ranks gives
  // the same bits. Gradients are then reduced in every micro-batch.
  bool invariant = false;
  std::size_t sums_for = 0;  // if invariant: reserve the memory of sums for this number of micro-batches; 0: `micro_batches`
  // What is kept in host memory instead of device memory. offload_optimizer: the optimizer's states, the gradients and, if
  // parameters are computed with in another type, their fp32 copy. offload_parameters: also the parameters at rest.
  bool offload_optimizer = false, offload_parameters = false;
  const Space* offload_to = &spaces::host;
  DType optimizer_state_type = DType::f32;  // of states with the shape of the parameters
  kernels::CacheShape cache = {};           // if not empty, the plan has a list for decoding, with caches of this shape
  bool documents = false;                   // a batch marks where documents begin; each document is computed separately
};

/// The content of Plan::sums.
using kernels::LossSum;
using kernels::UpdateSums;

/// The ends of the sections in an update's list. First come forward and backward of all micro-batches with their reductions,
/// then the gradient norm. The rest is the optimizer.
struct UpdateSections {
  std::size_t forward_backward = 0, gradient_norm = 0;
};

/// The largest number of partial sums of a unit's gradient that wait at the same time in an invariant plan. Sums are added as a
/// tree: two adjacent sums are added once both cover equally many micro-batches. So after micro-batch k, one sum waits for each
/// 1 in the binary digits of k + 1. `joins_at_once`: the sum of an odd micro-batch is added during its reduction; otherwise it
/// waits, too, until it is summed over replicas.
std::size_t sums_at_once(std::size_t micro_batches, bool joins_at_once);

/// All streams are idle when a list of operations begins, so waits only refer to operations of the same list.
struct Plan {
  std::vector<PlanBuffer> buffers;
  std::vector<Operation> update;      // all micro-batches, then norm and optimizer; empty unless training
  UpdateSections sections;            // of `update`
  std::vector<Operation> evaluation;  // one batch, forward only, over the same buffers
  std::vector<Operation> decoding;    // new tokens of some sequences, forward only, with key-value caches; may be empty
  std::vector<Operation> publish;     // run after code other than `update` has changed the parameters that a rank owns

  // Places per unit (-1: not trained). `master`: this rank's parameters that the optimizer updates. `parameters`: the
  // parameters at rest in the type of computation, whole or this rank's shard. `whole_parameters`: the gathered parameters.
  // `gradients`, `whole_gradients`: this rank's gradient and the unreduced one. `master` and `parameters` are one buffer if
  // their types are equal. Operations have their own operands; these places are for other code: saving, loading and, through
  // at_work(), the model's tables.
  std::vector<Location> master, parameters, whole_parameters, gradients, whole_gradients;
  std::vector<Location> kept_whole_gradients;  // the whole gradients between micro-batches, if they are kept
  // If the update is invariant and has several micro-batches: the places where partial sums wait. `gradients` holds the first
  // of them and, at the end, the total.
  bool sums_in_a_tree = false;
  std::vector<std::vector<Location>> waiting_sums;  // [unit]
  // The fp32 form of this rank's master and gradient, for operations. It is the buffer itself or, if that is bf16, memory that
  // units share in turn.
  std::vector<Location> wide_master, wide_gradients;
  std::vector<std::vector<BufferId>> optimizer_state;  // [unit][state of its rule]; empty if not trained
  BufferId cheap = -1;                 // the part of a block's saved activations that selective checkpointing drops; else -1
  std::vector<BufferId> statistics;    // one for each round; as many rounds as the rules of trained units need
  std::size_t directions_at_once = 2;  // number of units whose matrices are worked on together
  BufferId scratch = -1, inputs = -1, targets = -1, tables = -1, sums = -1;
  BufferId positions = -1;         // of each token in its document, if a batch has documents; else -1
  kernels::CacheShape cache = {};  // the shape of `caches`; empty if the plan does not decode
  std::vector<BufferId> caches;
  BufferId rows = -1;            // the rows of a decoding step: sequences[R], then positions[R]
  BufferId matrix_scratch = -1;  // for work on whole matrices
  // Buffers in host memory. `tokens`: the micro-batches of an update and, in a second half, of the next one. `step`: tokens,
  // sequences and positions of a decoding step. `logits`: those of the step's rows. `losses`: the loss of each row of an
  // evaluation. `report`: the final sums of the update.
  BufferId tokens = -1, step = -1, logits = -1, losses = -1, report = -1;

  /// The bytes to allocate in each space, in the order of the spaces' first buffers.
  std::vector<SpaceUse> spaces;
  std::size_t peak_bytes = 0;  // the largest amount of device memory in use at one time
  std::size_t bytes_in(const Space& space) const;
  /// The bytes of offloaded state, and those of the batch and results in host memory.
  std::size_t offloaded_bytes() const;
  std::size_t batch_bytes() const;

  /// Where operations find the content of `place`: at `place` itself or, if its buffer is offloaded, in the slot that it is
  /// loaded into.
  Location at_work(const Location& place) const {
    if (place.buffer < 0 || !buffers[static_cast<std::size_t>(place.buffer)].is_offloaded()) return place;
    const Location& slot = buffers[static_cast<std::size_t>(place.buffer)].slot;
    return {slot.buffer, slot.offset + place.offset, place.per_shard};
  }
  bool whole_at_rest(std::size_t unit) const { return whole_parameters[unit].buffer == parameters[unit].buffer; }
};

/// Pure function. Throws InternalError if the options contradict each other.
Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options);

/// A hash of the collectives and their order. Ranks compare it before the first step to make sure that they issue the same
/// collectives.
std::uint64_t collective_fingerprint(const Plan& plan);

/// "forward block 3", "all-gather root", "reduce-scatter root, add".
std::string title_of(const Operation& op, const Layout& layout);
std::string_view name_of(StreamId stream);
/// The operations as a table: number, stream, operation, reads, writes, waits. If there are more than three micro-batches, only
/// the first two and the last one are shown; if an operation has more than six buffers, two are.
std::string describe_operations(const Plan& plan, const std::vector<Operation>& operations, const Layout& layout);
/// Bytes per role, indexed by BufferRole: of device memory, and of offloaded state. Activations count at their peak; everything
/// else lives for the whole run. The sums are peak_bytes and offloaded_bytes().
std::array<std::size_t, role_count> memory_by_role(const Plan& plan);
std::array<std::size_t, role_count> offloaded_by_role(const Plan& plan);
/// The bytes per role and their sum as text. Host memory is listed separately.
std::string describe_memory(const Plan& plan);

}  // namespace fsdp
