// One update as data: a list of operations in issue order, each with the unit or block that it is about, its stream, the
// buffers that it reads and writes, and the earlier operations on other streams that it waits for. The executor runs it,
// --dry-run prints it, and the memory of the run is computed from it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"

namespace fsdp {

enum class StreamId { compute, gather, reduce };
inline constexpr std::size_t stream_count = 3;

enum class OperationKind {
  read_batch,
  all_gather,  // shards of a unit -> its slot on every rank
  release,     // the unit's slot may be used again
  embedding_forward,
  block_forward,
  head,       // final norm, projection, loss; in an update its backward pass as well
  recompute,  // a block's forward pass once more, for what it saves
  block_backward,
  embedding_backward,
  reduce_scatter,  // a unit's gradient slot -> this rank's gradient shard
  all_reduce,      // a unit's whole gradient, over the replicas
  gradient_norm,
  optimizer,
};
std::string_view name_of(OperationKind kind);

/// What a buffer is for: a line of the memory plan.
enum class BufferRole {
  parameters,
  gradients,
  optimizer_state,
  gathered_parameters,
  unreduced_gradients,
  activations,
  scratch,
  batch
};
inline constexpr std::size_t role_count = 8;
std::string_view name_of(BufferRole role);
/// Slots for gathered parameters and unreduced gradients lie in memory that the communicator provides.
constexpr bool is_slot(BufferRole role) {
  return role == BufferRole::gathered_parameters || role == BufferRole::unreduced_gradients;
}

using BufferId = int;

struct PlanBuffer {
  std::string name;  // "x3", "P0", "shard block 2"
  BufferRole role;
  std::size_t bytes;
  bool transient = false;  // lives inside one micro-batch; else for the whole run
  std::size_t offset = 0;  // in its arena: slots have one, all others share the other
};

struct Operation {
  OperationKind kind;
  StreamId stream;
  int micro_batch = 0;
  int unit = -1;            // of gathers, releases, reductions; of backward: the unit whose gradient is written
  int block = -1;           // of block_forward, recompute, block_backward
  bool accumulate = false;  // add to what is written instead of replacing it
  std::vector<BufferId> reads, writes;
  std::vector<int> waits = {};                      // derived: indices of earlier operations on other streams
  std::vector<BufferId> acquires = {}, frees = {};  // derived: transient buffers that live from here, until here
};

/// Sizes that the plan needs to know of the model, in bytes; see model_sizes().
struct ModelSizes {
  std::size_t blocks;
  std::size_t activation;  // a residual stream, [R, C]
  std::size_t saved;       // what a block keeps from forward to backward
  std::size_t scratch;
  std::size_t batch;  // inputs and targets
  std::size_t tables;
};
ModelSizes model_sizes(const Transformer& model, BatchShape shape);

struct PlanOptions {
  bool training = true;  // else evaluation alone: no gradients, no optimizer
  std::size_t micro_batches = 1;
  bool checkpoint_activations = false;
  std::size_t parameter_slots = 2;  // gathered units at a time, beside the root: the rate limiter
  std::size_t gradient_slots = 2;
  std::vector<std::string> optimizer_states = {};  // one buffer each, as long as the parameter shard
};

struct Plan {
  std::vector<PlanBuffer> buffers;
  std::vector<Operation> update;      // all micro-batches, then norm and optimizer; empty unless training
  std::vector<Operation> evaluation;  // one batch, forward only, over the same buffers

  // Buffers that the executor asks for by what they are. Per unit: its part of the rank's shard, and where its whole
  // parameters and gradients are found (a slot, or the shard itself where that is whole).
  std::vector<BufferId> parameter_shard, gradient_shard, whole_parameters, whole_gradients;
  std::vector<BufferId> optimizer_state;
  BufferId scratch = -1, inputs = -1, targets = -1, tables = -1;

  std::size_t arena_bytes = 0, slot_bytes = 0;  // to allocate
  std::size_t peak_bytes = 0;                   // most that is in use at one time, both arenas together
};

/// Pure function; throws InternalError if the options contradict each other.
Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options);

/// The operations as a table: number, stream, operation, reads, writes, waits.
std::string describe_operations(const Plan& plan, const std::vector<Operation>& operations, const Layout& layout);
/// Bytes per role, and the sum.
std::string describe_memory(const Plan& plan);

}  // namespace fsdp
