// Runs a plan. It knows neither the strategy nor the family: it binds buffers to memory and calls, operation by operation, the
// communicator, a stage of the model, or the optimizer.
//
// Streams of the CPU run in the order of the list on the thread that calls, or, with a communication thread, those of gathers
// and reductions on that one, so that they run while the model computes. Then nothing but the waits of the plan keeps the two
// in order. The numbers are the same.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/worker.hpp"
#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/plan.hpp"
#include "fsdp/shard_state.hpp"
#include "fsdp/stream_progress.hpp"
#include "nn/transformer.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

/// What changes from update to update.
struct UpdateScalars {
  std::uint64_t update = 1;  // counts from 1
  double learning_rate = 0;
  double clip_norm = 0;           // 0: no clipping
  std::uint64_t state_began = 0;  // the update after which the optimizer's states were zero
  Dropout dropout = {};           // first_sequence: of this rank's first micro-batch
  double tokens = 0;              // targets that count, of the whole update over all ranks
  /// What gradients are multiplied by from the loss to the optimizer, a power of 2: fp16 loses small ones.
  double loss_scale = 1;
};

struct UpdateResult {
  double loss = 0;              // mean over the update's tokens on all ranks
  double gradient_norm = 0;     // before clipping, without the loss scale
  std::int64_t non_finite = 0;  // infinite or NaN elements of the gradient, all ranks together
  bool finite() const { return non_finite == 0 && std::isfinite(loss); }
};

/// Something that is not finite: what a forward operation gave, or a gradient before its reduction.
struct NonFinite {
  std::size_t operation;                // index of plan.update
  std::size_t unit = 0, parameter = 0;  // of a gradient
};

/// Seconds of the calling thread by kind of work. `exposed` is what it spent on communication, or on waiting for it; the
/// collectives themselves took `collectives`, on whichever thread.
struct WorkTimes {
  double gemm = 0, attention = 0, other_kernels = 0, exposed = 0, optimizer = 0;
  double collectives = 0;
  double total() const { return gemm + attention + other_kernels + exposed + optimizer; }
  WorkTimes& operator+=(const WorkTimes& other) {
    gemm += other.gemm, attention += other.attention, other_kernels += other.other_kernels;
    exposed += other.exposed, optimizer += other.optimizer, collectives += other.collectives;
    return *this;
  }
};

/// When an operation began and ended on this rank, by now_ns(). A CPU stream has done an operation when its call returns.
struct OperationTime {
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Fills inputs[R] and targets[R] of micro-batch `index` of the update.
using BatchReader = std::function<void(std::size_t index, std::int32_t* inputs, std::int32_t* targets)>;

struct ExecutorOptions {
  bool comm_thread = false;
  /// For tests: called before each operation, by the thread that runs it.
  std::function<void(const Operation&)> before_operation = {};
  DType table_type = DType::f32;  // rotary tables are rounded to it
};

class Executor {
 public:
  /// Takes the plan's arenas: `arena` of plan.arena_bytes, and `slots` of plan.slot_bytes, which the shard axis allocated. The
  /// other arguments must outlive it. Not collective.
  Executor(Transformer& model, const Layout& layout, const Plan& plan, BatchShape shape, const OptimizerOptions& optimizer,
           Device& device, Buffer arena, Buffer slots, Mesh& mesh, ExecutorOptions options = {});

  /// What this rank owns of each unit: Layout::shard_numel() floats, valid while this object lives; empty where the unit has
  /// none (gradients and optimizer state of units that are not trained). Gradients are those of the last update, before
  /// clipping, with its loss scale. Whoever changes parameters calls publish_parameters() before anything is computed with
  /// them.
  std::vector<std::span<float>> parameters();
  std::vector<std::span<float>> gradients();
  /// The optimizer's states, each once, those of all units together.
  std::vector<ShardState> optimizer_states();
  /// Initial weights of what this rank owns, each from (seed, parameter, element): of all parameters, or of those that `which`
  /// says. Not collective.
  void initialize_parameters(std::uint64_t seed, const std::vector<bool>& which = {});
  /// Makes of the fp32 parameters that this rank owns what is computed with: rounds them in low precision, and gives the other
  /// ranks what they hold a copy of. Collective over world.
  void publish_parameters();

  /// One update. Collective over world. If loss or gradient are not finite, parameters and optimizer state stay as they were:
  /// look at the result, which is the same on every rank.
  UpdateResult run_update(const BatchReader& read, const UpdateScalars& scalars);
  /// The same update once more, after one that was not finite, which has changed nothing: where this rank's activations, going
  /// forward, or its own gradient, before it is reduced, are not finite for the first time; nothing if they are finite here.
  /// Collective over world.
  std::optional<NonFinite> find_non_finite(const BatchReader& read, const UpdateScalars& scalars);
  /// Sum of the loss over one batch per rank, over the targets of this rank that count. Collective over world.
  double evaluate(const BatchReader& read);
  /// logits[V] after position `row` of a batch of one rank. Collective over world.
  void logits(const BatchReader& read, std::size_t row, float* out);

  /// The next update writes here when each of its operations ran: one element for each operation of plan.update, or none.
  void record(std::span<OperationTime> times);
  /// From now on gathers and reductions of units move nothing: what is computed is meaningless, the time that it takes is that
  /// of a step without them. For measurements alone; the same on every rank.
  void fake_collectives(bool fake) { fake_collectives_ = fake; }

  /// Most that was in use at one time, measured.
  std::size_t peak_bytes() const { return arena_.peak_bytes() + slots_.peak_bytes(); }
  /// Time since the last reset_times().
  const WorkTimes& times() const { return times_; }
  void reset_times();

 private:
  /// What all operations of one list are run with.
  struct Pass {
    const std::vector<Operation>& operations;
    const BatchReader& read;
    const UpdateScalars& scalars;
    std::span<OperationTime> times;
  };
  void run(const Pass& pass);
  void run_communication(const Pass& pass);
  template <class Mine>
  WorkTimes run_streams(const Pass& pass, const Mine& mine);
  double wait_for(const Pass& pass, const Operation& op);
  void run_operation(const Operation& op, const BatchReader& read, const UpdateScalars& scalars);
  void bind(BufferId id);
  UnitMemory memory_of_unit(std::size_t unit);
  std::int64_t* words_of(int round);
  OptimizerStep step_of(const UpdateScalars& scalars);
  void count_statistics(Stream& stream, const Operation& op, const UpdateScalars& scalars);
  void work_on_matrices(Stream& stream, std::size_t unit);
  void reduce_norm(const UpdateScalars& scalars);
  void inspect(const Operation& op);
  void inspect_activations(const Operation& op, BufferId id, DType type);
  UpdateSums& sums() { return *reinterpret_cast<UpdateSums*>(at(plan_.sums)); }
  float* at(Location location) const { return at(location.buffer) + location.offset; }
  std::byte* at(Location location, DType type) const {
    return memory_[static_cast<std::size_t>(location.buffer)] + location.offset * size_of(type);
  }
  /// What this rank owns of a unit: in fp32, and as it is computed with.
  float* owned_master(std::size_t unit) const;
  std::byte* owned_parameters(std::size_t unit) const;
  void round_parameters(std::size_t unit);
  std::vector<std::span<float>> owned(const std::vector<BufferId>& buffers) const;
  float* at(BufferId id) const { return reinterpret_cast<float*>(memory_[static_cast<std::size_t>(id)]); }
  Stream& stream(StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }

  Transformer& model_;
  const Layout& layout_;
  const Plan& plan_;
  const BatchShape shape_;
  const OptimizerOptions optimizer_;
  Mesh& mesh_;
  const ExecutorOptions options_;
  std::array<std::unique_ptr<Stream>, stream_count> streams_;
  Arena arena_, slots_;
  std::vector<std::byte*> memory_;        // of each buffer
  std::vector<const void*> weights_;      // of each parameter: where it is when its unit is gathered
  std::vector<float*> gradients_;         // of each parameter
  std::vector<UnitParts> parts_;          // of each unit, of this rank
  std::vector<std::vector<int>> owners_;  // of each unit's matrices, if it has work on them
  WorkTimes times_;
  std::span<OperationTime> record_;  // of the next update
  bool fake_collectives_ = false;
  bool inspecting_ = false;
  std::optional<NonFinite> non_finite_;  // the first that was found
  std::size_t logits_row_ = 0;
  float* logits_out_ = nullptr;  // null: the loss is wanted

  StreamProgress progress_;
  WorkTimes communication_times_;
  std::unique_ptr<Worker> comm_thread_;  // last: it uses the others
};

}  // namespace fsdp
