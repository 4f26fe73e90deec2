// Runs a plan. It knows neither the strategy, nor the family, nor any kind of operation: it gives each operation to its stream,
// after the events that the operation waits for, and there the operation's kind runs it.
//
// Whether operations run at once, on other threads or on a GPU is the streams' business (device.hpp). Nothing but the waits of
// the plan keeps two streams in order. The numbers are the same in every case.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "fsdp/flight.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/operations/running.hpp"
#include "fsdp/plan.hpp"
#include "fsdp/shard_state.hpp"
#include "nn/model.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

struct UpdateResult {
  double loss = 0;              // mean over the update's tokens on all ranks
  double gradient_norm = 0;     // before clipping, without the loss scale
  std::int64_t non_finite = 0;  // infinite or NaN elements of the gradient, all ranks together
  bool is_spike = false;        // loss or norm above the limit: the update was left out
  bool finite() const { return non_finite == 0 && std::isfinite(loss); }
};

/// Something that is not finite: what a forward operation gave, or a gradient before its reduction.
struct NonFinite {
  std::size_t operation;                // index of plan.update
  std::size_t unit = 0, parameter = 0;  // of a gradient
};

/// Seconds of the compute stream by kind of work. `exposed` is what it waited for others, or, where streams do their work at
/// once, what communication took; collectives, loads and unloads themselves took `collectives`, on whichever stream.
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

/// When an operation began and ended on this rank, by now_ns().
struct OperationTime {
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Fills micro-batch `index` of the update: inputs and targets, and after the targets positions, as BatchLayout says.
using BatchReader = std::function<void(std::size_t index, std::int32_t* inputs, std::int32_t* targets)>;

struct ExecutorOptions {
  /// A test may set this; it is called in place of each operation, by the thread that runs it, and `run` is the operation.
  std::function<void(const Operation&, const std::function<void()>& run)> around_operation = {};
  DType table_type = DType::f32;  // rotary tables are rounded to it
};

class Executor {
 public:
  /// Takes the plan's memory: a buffer for each of plan.spaces. The other arguments must outlive it. Not collective.
  Executor(const Model& model, const Layout& layout, const Plan& plan, BatchShape shape, const OptimizerOptions& optimizer,
           Device& device, std::vector<Buffer> memory, const Mesh& mesh, ExecutorOptions options = {});

  /// What this rank owns of each unit: Layout::shard_numel() numbers, of UnitTypes::master and gradient, valid while this
  /// object lives; empty where the unit has none (gradients and optimizer state of units that are not trained). Gradients are
  /// those of the last update, before clipping, with its loss scale. Whoever changes parameters calls publish_parameters()
  /// before anything is computed with them.
  ShardState parameters();
  ShardState gradients();
  /// The optimizer's states, each once, those of all units together.
  std::vector<ShardState> optimizer_states();
  /// What a checkpoint holds: the parameters, then the optimizer's states.
  std::vector<ShardState> states();
  /// Initial weights of what this rank owns, each from (seed, parameter, element): of all parameters, or of those that `which`
  /// says. Not collective.
  void initialize_parameters(std::uint64_t seed, const std::vector<bool>& which = {});
  /// Makes of the fp32 parameters that this rank owns what is computed with: rounds them in low precision, and gives the other
  /// ranks what they hold a copy of. Collective over world.
  void publish_parameters();

  /// Where micro-batch `index` of the update that begins next is read to: inputs, and what follows them as BatchLayout says. It
  /// may be written while an update is under way.
  std::int32_t* next_batch(std::size_t index);
  /// What is read of a micro-batch.
  BatchLayout batch() const { return facts_.batch(); }
  /// One update over next_batch(), in the sections of the plan, each called once and in this order. They give work to the
  /// streams and do not wait for it; the last one does. If loss or gradient are not finite, or above
  /// the limits of `scalars`, parameters and optimizer state stay as they were: look at the result, which is the same on every
  /// rank. Collective over world. After an exception from any of them the update is over.
  void begin_update(const UpdateScalars& scalars);
  void forward_backward();
  void gradient_norm();
  UpdateResult update_parameters();
  /// All four, over what `read` gives.
  UpdateResult run_update(const BatchReader& read, const UpdateScalars& scalars);
  /// The last update once more, over the same batch, after it was not finite and has changed nothing: where this rank's
  /// activations, going forward, or its own gradient, before it is reduced, are not finite for the first time; nothing if they
  /// are finite here. Collective over world.
  std::optional<NonFinite> find_non_finite(const UpdateScalars& scalars);
  /// Sum of the loss over one batch per rank, over the targets of this rank that count. losses[R], if not null, gets each of
  /// them, and 0 for targets that do not count. Collective over world.
  LossSum evaluate(const BatchReader& read, float* losses = nullptr);
  /// The forward pass of a step's rows, at most as many as the batch has; their keys and values go into the caches. logits[n,V]
  /// are those of the n rows that are wanted. Each rank has rows of its own, or none. Of plans with caches. Collective over
  /// world.
  void decode(const DecodingStep& step, float* logits);
  const kernels::CacheShape& cache() const { return plan_.cache; }
  /// Rows that a step may have.
  std::size_t most_rows() const { return facts_.shape.rows(); }

  /// The next update writes here when each of its operations ran: one element for each operation of plan.update, or none.
  void record(std::span<OperationTime> times);
  /// From now on each operation is noted in the lane of its stream, as it begins and ends; where streams only queue it (a GPU),
  /// as it is given to the stream, and as done once the host knows that the whole list is. Null: no more. For evaluation,
  /// decoding and publish_parameters() the update is 0. `lanes` outlives this or the next call.
  void note_operations(FlightLanes* lanes);
  /// From now on collectives go through the groups of `mesh`, which outlives this or the next call. For measurements: with
  /// groups that move nothing (SilentCommunicator), what is computed is meaningless, and takes the time of a step without them.
  /// The same on every rank.
  void communicate_along(const Mesh& mesh) { facts_.mesh = &mesh; }

  /// Most that was in use of the device at one time, measured.
  std::size_t peak_bytes() const;
  /// Time since the last reset_times().
  const WorkTimes& times() const { return times_; }
  /// A GPU measures only updates whose operations are recorded; gemm and attention count among the other kernels there.
  bool knows_times() const;
  void reset_times();

 private:
  /// What all operations of one list are run with, and how many have been given to their streams.
  struct Pass {
    Executor* executor;
    const std::vector<Operation>& operations;
    UpdateScalars scalars;
    std::span<OperationTime> times;
    std::size_t batch_begin;
    const FlightEntry* notes = nullptr;  // of each operation; null: none are taken
    std::size_t issued = 0;
  };
  const FlightEntry* notes_of(const std::vector<Operation>& operations) const;
  UpdateResult result_of(const UpdateScalars& scalars) const;
  void begin(const std::vector<Operation>& operations, const UpdateScalars& scalars, std::span<OperationTime> times = {});
  std::size_t half_of_batches() const;
  void issue(Range range);
  void wait_for_streams();
  void finish();
  void run(const std::vector<Operation>& operations);
  void run_timed(const Pass& pass, std::size_t index);
  void stop_all_streams() noexcept;
  static void add_time(WorkTimes& times, const Operation& op, const OperationTime& time, const KernelTimes& kernels);
  void read_marks(const Pass& pass);
  void collect_times();
  std::optional<NonFinite> inspect_gradient(std::size_t operation);
  std::optional<NonFinite> inspect_activations(std::size_t operation);
  template <class T>
  T* at(const Location& place) const {
    return facts_.at<T>(place);
  }
  /// A place for the host's code, while stream `id` is idle.
  MemoryView view_of(const Location& place, std::size_t bytes, StreamId id);
  /// As they were when the last list was done.
  const UpdateSums& report() const { return *at<const UpdateSums>(plan_.report); }
  ShardState owned(std::string name, const std::vector<Location>& places, DType type);
  const UnitTypes& types() const { return facts_.types(); }
  Stream& stream(StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  /// Those that the plan has work for.
  std::span<const std::shared_ptr<Stream>> streams() const { return {streams_.data(), offloads_ ? stream_count : 3}; }

  const Layout& layout_;
  const Plan& plan_;
  const ExecutorOptions options_;
  RankFacts facts_;
  std::vector<Arena> arenas_;  // of each space; the first is the device's
  const bool offloads_;
  WorkTimes times_;
  std::span<OperationTime> record_;  // of the next update
  FlightLanes* lanes_ = nullptr;
  std::array<std::vector<FlightEntry>, 4> notes_;              // of the update, the evaluation, decoding, and what is published
  DecodingStep step_;                                          // the one that is done
  bool next_half_ = false;                                     // of plan.tokens: where the batch of the next update is
  std::optional<Pass> pass_;                                   // of the list that runs
  std::vector<Event> events_;                                  // the end of each operation of the list that runs
  std::array<WorkTimes, stream_count> times_of_stream_;        // since the list began
  std::array<std::shared_ptr<Stream>, stream_count> streams_;  // last: they use the others
};

}  // namespace fsdp
