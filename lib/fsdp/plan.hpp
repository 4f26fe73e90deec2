// One update as data: a list of operations in issue order, each with the unit or block that it is about, its stream, the
// buffers that it reads and writes, and the earlier operations on other streams that it waits for. The executor runs it,
// a dry run prints it, and the memory of the run is computed from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "kernels/update_sums.hpp"
#include "nn/model.hpp"

namespace fsdp {

/// The last two have work where something is kept on the host: each goes one way over the bus, so that both ways are used at
/// once, and neither holds up collectives.
enum class StreamId { compute, gather, reduce, load, unload };
inline constexpr std::size_t stream_count = 5;

enum class OperationKind {
  read_batch,
  all_gather,  // every rank's part -> the whole on every rank
  release,     // the slot of a unit's parameters may be used again
  embedding_forward,
  block_forward,
  head,       // final norm, projection, loss, and their backward pass
  head_loss,  // in evaluation: without the backward pass
  read_rows,  // the new tokens of a step of decoding
  embedding_decode,
  block_decode,  // of new tokens, whose keys and values join those in the block's cache
  head_logits,   // of the tokens whose successors are wanted
  recompute,     // a block's forward pass once more, for what it saves
  refill,        // the cheap part of what a block saves, from the part that was kept
  block_backward,
  embedding_backward,
  clear,            // a unit's gradient slot becomes zero, to be added to
  reduce_scatter,   // the sum over the ranks of what each has of the whole -> each rank's part of the sum
  all_reduce,       // the same sum on all ranks, in place
  sum_gradients,    // a unit's gradient in some micro-batches -> where its sum over others is, or will be
  add_squares,      // the squares of what a rank has of a unit's gradient, added to the update's sums
  gradient_norm,    // what follows from the update's sums, once they are over all ranks
  clip_values,      // what a rank has of a unit's gradient, each element limited to a value
  statistics,       // in a round, what a rank has of a unit's sums over whole tensors, for optimizers that need them
  directions,       // what a rank has of that from which whole matrices make a unit's update
  whole_matrices,   // the work on those matrices that this rank owns; the others become zero
  optimizer,        // a unit's update; in low precision it also rounds what it has changed
  round,            // what a rank owns of a unit's parameters: fp32 -> the type that is gathered and computed with
  widen,            // what a rank keeps in bf16 of a unit -> fp32, for the operations behind it
  round_at_random,  // fp32 -> what is kept in bf16, up or down, with the same expected value; then the fp32 are these, too
  load,             // what a rank keeps of a unit on the host -> its slot on the device
  unload            // what operations have changed in that slot -> the host
};

/// What the time of an operation counts as.
enum class Account { model, communication, optimizer, offload };
/// How an operation is drawn: see timeline.hpp.
enum class Drawing { not_at_all, briefly, as_forward, as_backward, as_transfer };

/// All that is known of a kind of operation, besides what it does: a row for each.
struct OperationInfo {
  OperationKind kind;
  std::string_view name;
  Account account;
  char letter;  // in drawings
  Drawing drawing;
};
const OperationInfo& info_of(OperationKind kind);
/// Whether ranks exchange something in it.
inline bool is_collective(OperationKind kind) { return info_of(kind).account == Account::communication; }

/// What a collective moves.
enum class Quantity { parameters, gradients, directions, statistics, squares, loss };

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
  std::size_t offset = 0;  // in its arena: slots have one, what is on the host has one, all others share the third
  // Of what is kept on the host: the slot that it is loaded into, and the unit that it is of.
  Location slot = {};
  int unit = -1;

  bool on_host() const { return slot.buffer >= 0; }
};

/// One step of a list. It says all that it does: whoever runs it, checks it, counts it or draws it reads these fields.
struct Operation {
  OperationKind kind;
  StreamId stream;
  int micro_batch = 0;
  int unit = -1;            // whose parameters, gradient or directions it is about
  int block = -1;           // of block_forward, block_decode, recompute, refill, block_backward
  int round = 0;            // of statistics and their reduction
  bool accumulate = false;  // it adds to what it writes instead of replacing it

  // The following fields describe collectives, which move reads[0] to writes[0], as loads and unloads do. Other kinds that go
  // over a unit have `count`, and some of them `type`, too; widen and round_at_random have a quantity.
  Quantity quantity = Quantity::parameters;
  GroupAxis group = GroupAxis::shard;
  std::size_t count = 0;      // elements: of a rank's part in all_gather and reduce_scatter, else of all
  DType type = DType::f32;    // of what is read and written
  DType travel = DType::f32;  // what each rank's summands are rounded to on their way, where they are fp32

  // The tensors that the kind needs come first, in the order in which plan_builder.cpp or plan_update.cpp writes them and
  // executor.cpp and plan_check.cpp read them; what a stage reaches through the model's tables of parameters and gradients
  // follows.
  std::vector<Location> reads, writes;
  std::vector<int> waits = {};                      // derived: indices of earlier operations on other streams
  bool awaited = false;                             // derived: a later operation waits for it
  std::vector<BufferId> acquires = {}, frees = {};  // derived: transient buffers that live from here, until here
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

/// What is read of each token of a batch: inputs and targets, and with documents positions.
constexpr std::size_t numbers_of_token(const PlanOptions& options) { return options.documents ? 3 : 2; }

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
  BufferId rows = -1;  // which tokens a step of decoding has: sequences[R], then positions[R]

  std::size_t arena_bytes = 0, slot_bytes = 0, host_bytes = 0;  // to allocate; the last of the host's memory
  std::size_t peak_bytes = 0;  // most that is in use of the device at one time, arena and slots together

  /// Where operations find what is kept at `place`: at `place` itself, or, if its buffer is on the host, in the slot that it is
  /// loaded into.
  Location at_work(const Location& place) const {
    if (place.buffer < 0 || !buffers[static_cast<std::size_t>(place.buffer)].on_host()) return place;
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
/// Bytes per role, indexed by BufferRole. Activations count at their peak, as the arena holds them; everything else lives for
/// the whole run. They add up to peak_bytes, or, of what is kept on the host, to host_bytes.
std::array<std::size_t, role_count> memory_by_role(const Plan& plan);
std::array<std::size_t, role_count> memory_on_host_by_role(const Plan& plan);
/// Bytes per role, and the sum; what is on the host apart.
std::string describe_memory(const Plan& plan);

}  // namespace fsdp
