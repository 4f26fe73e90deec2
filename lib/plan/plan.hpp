// A plan is one update as data: a list of operations in issue order. Each operation has its unit or block, its stream, its
// operands in memory, and the earlier operations on other streams that it waits for. The executor runs the list, a dry run
// prints it, and the memory of the run is computed from it. docs/glossary.md defines the terms: a unit is a set of parameters
// that is gathered and reduced together, a stage is the embedding, a block or the head, and a slot is memory that units use in
// turn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.hpp"
#include "device/storage.hpp"
#include "kernels/update_sums.hpp"
#include "nn/model.hpp"
#include "plan/layout.hpp"
#include "plan/placement.hpp"

namespace fsdp {

/// `load` copies offloaded state from the host to the device, and `unload` copies it back. These two are separate streams, so
/// that copies in both directions run simultaneously and do not delay collectives.
enum class StreamId { compute, gather, reduce, load, unload };
inline constexpr std::size_t stream_count = 5;

struct Kind;  // what operations of a kind do: see kind.hpp

/// The role of an operand in an operation. A table in operations/operands.cpp has the place, the size and the content for each
/// name.
enum class OperandName : std::uint8_t {
  tokens,
  step,
  losses,
  logits,
  report,    // the update's final sums, in host memory
  own_loss,  // after the report: this rank's sum of losses
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
  average,
  stored,
  slot,
  all_outputs,  // of all ranks, for a loss that sees them
  all_targets,  // likewise
  all_dx,       // the gradient of all_outputs, from this rank's rows
  gathered_dx,  // this rank's part of the sum of all_dx over the ranks
  in_layers     // what a pass of a layer gathers
};

/// The purpose of a buffer. The memory plan that programs print has a line for each role.
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
/// Returns true for gathered parameters and unreduced gradients. Buffers with these roles are in memory that the communicator
/// provides.
constexpr bool is_slot(BufferRole role) {
  return role == BufferRole::gathered_parameters || role == BufferRole::unreduced_gradients;
}

using BufferId = int;

/// What an allocation of memory needs: a rank's device, the rank's shard group, and the folder for files of state.
struct Means {
  Device& device;
  Collectives& shard_group;
  std::filesystem::path folder = {};
};
/// Where the bytes of a space are. The account of a rank's memory has a sum for each tier.
enum class Tier { device, host, disk };
/// A place for buffers, and the function that makes the storage for them. spaces.cpp defines the library's spaces.
struct Space {
  std::string_view name;
  Tier tier;
  bool collective;  // open() is a collective call of the shard group
  std::unique_ptr<Storage> (*open)(const Means&, std::size_t bytes);
  std::size_t alignment = 1;  // buffers begin at multiples of this
};
namespace spaces {
extern const Space device;
extern const Space slots;  // memory that the communicator provides, for gathered parameters and unreduced gradients
extern const Space host;   // memory that the device copies from and to
extern const Space nvme;   // a file without a name in Means::folder: device/file_storage.hpp
}  // namespace spaces
/// Where a rank's state is at rest. Null: in the device's memory. If parameters have a place, the optimizer's state has one,
/// too.
struct StatePlaces {
  const Space* parameters = nullptr;  // in the type of computation
  const Space* optimizer = nullptr;   // the optimizer's states, the average and, in mixed precision, the fp32 master parameters
  const Space* gradients = nullptr;   // those that are reduced, and their sums between micro-batches
  bool any() const { return parameters || optimizer || gradients; }
  /// Returns true if state is in files. A copy of it may not fit into memory, so a save is written from the files while
  /// training waits. A prediction needs the rates of the disk.
  bool on_disk() const {
    const auto is_file = [](const Space* space) { return space && space->tier == Tier::disk; };
    return is_file(parameters) || is_file(optimizer) || is_file(gradients);
  }
};
struct SpaceUse {
  const Space* space;
  std::size_t bytes;
};
/// Opens those of the spaces in `uses` whose field `collective` equals the argument. memory[i] receives the storage of uses[i].
void open_spaces(const std::vector<SpaceUse>& uses, const Means& means, bool collective,
                 std::vector<std::unique_ptr<Storage>>& memory);

/// A place in a buffer. On rank r of the shard axis it starts at byte `offset` + r * `per_shard`, so that one plan serves all
/// ranks. `per_shard` is 0 unless ranks own different parts of the content.
struct Location {
  BufferId buffer = -1;
  std::size_t offset = 0, per_shard = 0;  // bytes

  Location() = default;
  Location(BufferId in, std::size_t bytes = 0, std::size_t bytes_per_shard = 0)
      : buffer(in), offset(bytes), per_shard(bytes_per_shard) {}
  bool operator==(const Location&) const = default;
};

/// The part of the model that a buffer's content belongs to: a unit or a stage. The other number is -1.
struct Owner {
  int unit = -1, stage = -1;
  bool operator==(const Owner&) const = default;
};

struct PlanBuffer {
  std::string name;  // "x3", "P0", "shard block 2"
  BufferRole role;
  std::size_t bytes;
  bool transient = false;  // true: used inside one micro-batch only; false: kept for the whole run
  const Space* space = &spaces::device;
  std::size_t offset = 0;  // in its space
  // Set if the buffer is offloaded: `slot` is the place on the device that the content is loaded into.
  Location slot = {};
  Owner owner = {};

  /// Returns true if only loads and unloads access this buffer.
  bool is_offloaded() const { return slot.buffer >= 0; }
};

struct Operand {
  OperandName name;
  Location place;
  bool operator==(const Operand&) const = default;
};

/// One entry of a plan's list. Code that runs, checks, counts or draws an operation needs only these fields.
struct Operation {
  const Kind* kind;
  StreamId stream;
  int micro_batch = 0;
  int unit = -1;            // the unit whose parameters, gradient or state are used; -1: none
  int stage = -1;           // 0: embedding, 1 + b: block b, the last: head; -1: none
  int block = -1;           // index of the block, if the stage is a block; else -1
  int round = 0;            // the round of the optimizer's sums over whole tensors: kinds::statistics
  bool accumulate = false;  // adds to its output instead of replacing it

  // The amount of work, for collectives and operations on a whole unit.
  GroupAxis group = GroupAxis::shard;
  std::size_t count = 0;    // elements: of one rank's shard in an all-gather or reduce-scatter, else of all that it processes
  DType type = DType::f32;  // of the elements read and written
  DType reduce_dtype = DType::f32;  // fp32 summands are rounded to this type before they are sent

  std::vector<Operand> operands;                    // in the order of Kind::operands
  std::vector<int> waits = {};                      // indices of earlier operations on other streams: derive_waits()
  bool awaited = false;                             // a later operation waits for it: derive_waits()
  std::vector<BufferId> acquires = {}, frees = {};  // transient buffers whose lifetime begins or ends here

  /// The bytes of this rank's part of a collective, load or unload.
  std::size_t bytes() const { return count * size_of(type); }
  /// The place of operand number `index` among those of this name; null if there is none.
  const Location* find(OperandName name, std::size_t index = 0) const {
    for (const Operand& operand : operands)
      if (operand.name == name && index-- == 0) return &operand.place;
    return nullptr;
  }
  const Location& at(OperandName name) const;  // throws InternalError
};

/// What activation checkpointing stores in the forward pass. `block`: only the inputs of blocks. `selective`: also the outputs
/// of attention and of large matrix products.
enum class CheckpointPolicy { block, selective };

/// When the backward pass gathers its next unit: before (`pre`) or after (`post`) the computation on the current unit, or only
/// when the next unit is needed (`none`).
enum class BackwardPrefetch { pre, post, none };

inline constexpr auto all_inputs = static_cast<std::size_t>(-1);  // PlanOptions::offloaded_inputs

struct PlanOptions {
  bool training = true;  // false: evaluation only, without gradients and optimizer
  std::size_t micro_batches = 1;
  bool checkpoint_activations = false;
  CheckpointPolicy checkpoint_policy = CheckpointPolicy::block;
  std::size_t checkpoint_every = 1;  // policy `block`: blocks per segment; only the input of a segment is stored
  // Recompute this many of the first blocks, instead of checkpoint_activations. Of the last block, only an MLP in pieces is
  // recomputed, because backward begins with it.
  std::size_t recomputed_blocks = 0;
  std::size_t parameter_slots = 2;  // the most units gathered at a time, besides units that stay gathered (rate limiter)
  std::size_t gradient_slots = 2;
  bool reduces = true;  // false: one rank, which has nothing to reduce
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;  // gather the next unit before the current one is computed; false: when it is needed
  bool accumulate_unsharded =
      false;                 // keep whole gradients between micro-batches and reduce once at the end (PyTorch's no_sync)
  bool clip_values = false;  // clip each element of the gradient
  // If true, sums over micro-batches and ranks are computed in one canonical order of the update's micro-batches, in which
  // micro-batch k of rank r is number k * ranks + r. So a batch gives the same bits on 1, 2, 4, 8, ... ranks. Gradients are
  // then reduced in every micro-batch.
  bool invariant = false;
  std::size_t sums_for = 0;  // allocate batches and, if invariant, partial sums for this many; 0: `micro_batches`
  StatePlaces places = {};
  // Keep the inputs of recomputed segments that begin among this many of the first blocks in host memory, from forward to
  // backward.
  std::size_t offloaded_inputs = 0;
  DType optimizer_state_type = DType::f32;  // of states with the shape of the parameters
  bool average_weights = false;             // keep a moving average of the parameters, in fp32
  kernels::CacheShape cache = {};           // if not empty, the plan has a list for decoding, with caches of this shape
  bool documents = false;        // a batch has the positions of tokens in documents; attention stays inside a document
  bool input_gradients = false;  // the plan has a list for the gradient of the inputs, which are numbers
};

/// The content of Plan::sums.
using kernels::LossSum;
using kernels::UpdateSums;

/// The ends of two sections in Plan::update, as indices. The first section is forward and backward of all micro-batches,
/// including the reductions of gradients. The second is the gradient norm. The operations after both are the optimizer.
struct UpdateSections {
  std::size_t forward_backward = 0, gradient_norm = 0;
};

/// All streams are idle when a list of operations begins, so waits only refer to operations of the same list.
struct Plan {
  std::vector<PlanBuffer> buffers;
  std::vector<Operation> update;      // all micro-batches, then norm and optimizer; empty unless training
  UpdateSections sections;            // of `update`
  std::vector<Operation> evaluation;  // one batch, forward only, over the same buffers; any beginning of it can be run
  /// One micro-batch, forward and backward without gradients of parameters; may be empty. Its last operation with the operand
  /// `dx` leaves the gradient of the inputs there.
  std::vector<Operation> input_gradients;
  std::vector<Operation> decoding;  // new tokens of some sequences, forward only, with key-value caches; may be empty
  std::vector<Operation> publish;   // run after other code, such as loading, has changed a rank's parameters

  // The places of each unit's state; gradients of a unit that is not trained are in buffer -1.
  // - `master`: this rank's parameters that the optimizer updates.
  // - `parameters`: the parameters at rest in the type of computation, whole or this rank's shard. They share a buffer with
  //   `master` if both have the same type.
  // - `whole_parameters`: the gathered parameters.
  // - `gradients`: this rank's gradient. `whole_gradients`: the unreduced gradient.
  // Operations use their operands instead. These places are for saving, for loading, and (through at_work()) for the pointers
  // in StageContext.
  std::vector<Location> master, parameters, whole_parameters, gradients, whole_gradients;
  std::vector<Location> kept_whole_gradients;  // the whole gradients between micro-batches, if they are kept
  // sums_in_a_tree: the update is invariant and has several micro-batches. The first partial sum of a gradient is then in
  // `gradients`, and in the end the total is there. The other partial sums are in `waiting_sums`.
  bool sums_in_a_tree = false;
  std::vector<std::vector<Location>> waiting_sums;  // [unit]
  // This rank's master parameters and gradient in fp32, for operations: the places in `master` and `gradients` or, if that
  // state is bf16, memory in which each unit's fp32 copy replaces that of another unit. For a unit that is updated in one pass,
  // wide_master is the place in `master`, in bf16.
  std::vector<Location> wide_master, wide_gradients;
  std::vector<std::vector<BufferId>> optimizer_state;  // [unit][state of the unit's rule]; empty if not trained
  std::vector<BufferId> averages;      // [unit]: this rank's part of the average; -1 if not trained; empty if there is none
  std::size_t blocks_in_pieces = 0;    // this many of the first blocks compute their MLP in pieces: StageContext::in_pieces
  BufferId cheap = -1;                 // selective checkpointing: the recomputed part of a block's saved activations; else -1
  std::vector<BufferId> statistics;    // a buffer for each round of the optimizer's sums over whole tensors
  std::size_t directions_at_once = 2;  // Muon: the number of units whose update is computed together
  BufferId scratch = -1, inputs = -1, targets = -1, tables = -1, sums = -1;
  // For a loss that sees the rows of all ranks; else -1.
  BufferId all_outputs = -1, all_targets = -1, all_dx = -1, gathered_dx = -1;
  BufferId in_layers = -1;         // for what layers gather during their passes; -1: nothing
  BufferId positions = -1;         // of each token in its document, if a batch has documents; else -1
  kernels::CacheShape cache = {};  // the shape of `caches`; empty if the plan does not decode
  std::vector<BufferId> caches;
  BufferId rows = -1;            // the rows of a decoding step: sequences[R], then positions[R]
  BufferId matrix_scratch = -1;  // for Muon's work on whole matrices
  // Buffers in host memory. `tokens` has two halves, for the micro-batches of the current update and of the next one. `step`
  // has tokens, sequences and positions of a decoding step, and `logits` has the wanted logits of that step. `losses` has the
  // loss of each row of an evaluation. `report` has the final sums of the update, then the LossSum of this rank alone.
  BufferId tokens = -1, step = -1, logits = -1, losses = -1, report = -1;

  /// The list with the longest lifetimes of transient buffers. If inputs have gradients, backward reaches all blocks.
  const std::vector<Operation>& main_list() const {
    return !input_gradients.empty() ? input_gradients : update.empty() ? evaluation : update;
  }
  /// The bytes to allocate in each space, in the order of the spaces' first buffers.
  std::vector<SpaceUse> spaces;
  std::size_t peak_bytes = 0;  // the largest amount of device memory in use at one time
  std::size_t bytes_in(const Space& space) const;
  /// The size of this rank's files, whose buffers begin at multiples of their space's alignment.
  std::size_t bytes_on_disk() const;
  /// offloaded_bytes() counts offloaded state in all spaces, and batch_bytes() counts batches and results in host memory.
  std::size_t offloaded_bytes() const;
  std::size_t batch_bytes() const;

  /// Returns the place that operations use for the content of `place`: `place` itself or, if its buffer is offloaded, the same
  /// place in the slot that the buffer is loaded into.
  Location at_work(const Location& place) const {
    if (place.buffer < 0 || !buffers[static_cast<std::size_t>(place.buffer)].is_offloaded()) return place;
    const Location& slot = buffers[static_cast<std::size_t>(place.buffer)].slot;
    return {slot.buffer, slot.offset + place.offset, place.per_shard};
  }
  bool whole_at_rest(std::size_t unit) const { return whole_parameters[unit].buffer == parameters[unit].buffer; }
};

/// Pure function. Throws InternalError if the options contradict each other. `evaluated`: the sizes for the batch of an
/// evaluation; null: they are `sizes`.
Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options,
                const ModelSizes* evaluated = nullptr);
/// The lists of a plan.
std::array<const std::vector<Operation>*, 5> lists_of(const Plan& plan);

/// A hash of the collectives and their order. Ranks compare this hash before the first step to make sure that they issue the
/// same collectives.
std::uint64_t collective_fingerprint(const Plan& plan);

/// "forward block 3", "all-gather root", "reduce-scatter root, add"; of a user's layers "forward stem".
std::string title_of(const Operation& op, const Layout& layout);
std::string_view name_of(StreamId stream);
/// The operations as a table: number, stream, operation, reads, writes, waits. If there are more than three micro-batches, only
/// the first two and the last one are shown. Operations that are repeated for other blocks are shown once. If an operation
/// reads or writes more than six buffers, only two of these buffers are shown.
std::string describe_operations(const Plan& plan, const std::vector<Operation>& operations, const Layout& layout);
/// Bytes per role, indexed by BufferRole. memory_by_role() counts device memory, with activations at their peak; the sum is
/// Plan::peak_bytes. offloaded_by_role() counts offloaded buffers in the spaces of a tier.
std::array<std::size_t, role_count> memory_by_role(const Plan& plan);
std::array<std::size_t, role_count> offloaded_by_role(const Plan& plan, Tier tier);
/// The bytes per role and their sum as text. Host memory is listed separately.
std::string describe_memory(const Plan& plan);

}  // namespace fsdp
