// The executor runs a plan. It submits each operation to a stream (Operation::stream). The stream first waits for the
// operations in Operation::waits, then calls Kind::run. The executor does not depend on the strategy, the model family or the
// kinds of operations.
//
// The type of the streams (device.hpp) determines whether an operation runs immediately, on another thread or on a GPU. The
// results are the same in all three cases. Operations on different streams are ordered only by the plan's waits.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "nn/model.hpp"
#include "optim/optimizer.hpp"
#include "plan/layout.hpp"
#include "plan/plan.hpp"
#include "run/operations/running.hpp"
#include "run/shard_state.hpp"
#include "run/work_clock.hpp"
#include "tensor/columns.hpp"

namespace fsdp {

namespace kernels {
struct Product;
}

struct UpdateResult {
  double loss = 0;              // mean over all tokens of the update, on all ranks
  double own_loss_sum = 0;      // the sum over the tokens of this rank
  double gradient_norm = 0;     // before clipping, without the loss scale
  std::int64_t non_finite = 0;  // the number of infinite or NaN elements of the gradient on all ranks
  double entropy = 0;           // of the predictions of a transformer: the mean over all tokens of the update
  double accuracy = 0;          // of a transformer: the share of the tokens that it thinks likeliest
  bool is_spike = false;        // the update was skipped, because loss or norm exceeded its limit
  bool finite() const { return non_finite == 0 && std::isfinite(loss); }
};

/// Where the first infinite or NaN value is: in the output of a forward operation, or in a local gradient before its reduction.
struct NonFinite {
  std::size_t operation;                // index in plan.update
  std::size_t unit = 0, parameter = 0;  // set only if the value is in a gradient
};

/// Fills micro-batch `index` of the update. It writes inputs and targets. If a batch has positions, they follow the targets
/// directly (see BatchLayout).
using BatchReader = std::function<void(std::size_t index, std::int32_t* inputs, std::int32_t* targets)>;

struct ExecutorOptions {
  std::filesystem::path gemm_algorithms = {};  // see use_gemm_algorithms(); empty: no file
  std::filesystem::path nvme_path = {};        // the folder for the files of spaces::nvme
  DType table_type = DType::f32;               // rotary tables are rounded to this type
  std::size_t pad_to_multiple_of = 0;          // of the columns of a micro-batch: ColumnRule::multiple
};

class Executor {
 public:
  /// Takes ownership of `memory`, which has one storage for each entry of plan.spaces. The other arguments must outlive the
  /// executor. `evaluated_sequences`: as in ShardingOptions. Not collective.
  Executor(const Model& model, const Layout& layout, const Plan& plan, BatchShape shape, const OptimizerOptions& optimizer,
           Device& device, std::vector<std::unique_ptr<Storage>> memory, const Mesh& mesh, ExecutorOptions options = {},
           std::size_t evaluated_sequences = 0);

  /// This rank's shard of each unit: Layout::shard_numel() numbers of type UnitTypes::master (parameters) or
  /// UnitTypes::gradient. These views are valid during the executor's lifetime. Frozen units have no gradients and no optimizer
  /// state. Gradients are those of the last update, multiplied by its loss scale, and not yet clipped by norm. A caller that
  /// changes parameters must call publish_parameters() before the next computation.
  ShardState parameters();
  ShardState gradients();
  /// The optimizer's states. Each state covers all units.
  std::vector<ShardState> optimizer_states();
  /// The moving average of the parameters, if the plan has one: fp32 numbers for each trained unit.
  std::optional<ShardState> average();
  /// The state that a checkpoint stores: the parameters, then the optimizer's states, then the average.
  std::vector<ShardState> states();
  /// Sets the average to the parameters. Not collective.
  void begin_average();
  /// Exchanges the parameters with their average, if both are fp32; publish_parameters() is still needed. Two calls restore
  /// both bit for bit. Not collective.
  void swap_average();
  /// Sets the parameters that this rank owns to their initial values. Each value is a function of (seed, parameter, element).
  /// `which` selects parameters; if `which` is empty, all are set. Not collective.
  void initialize_parameters(std::uint64_t seed, const std::vector<bool>& which = {});
  /// From now on, the optimizer counts the updates of a parameter without its first `missed` ones, in which it was frozen.
  /// `missed` has a number for each parameter of the model; each is 0 at first.
  void count_from(const std::vector<std::uint64_t>& missed);
  /// Updates everything that is derived from the fp32 parameters that this rank owns: rounds these parameters to the
  /// low-precision type, and sends the result to the ranks that keep a copy. Collective over world.
  void publish_parameters();

  /// The memory for micro-batch `index` of the next update: inputs, then targets, then positions (BatchLayout). The caller may
  /// write to it during the current update.
  std::int32_t* next_batch(std::size_t index);
  /// Leaves out the last columns of micro-batch `index` of the next update, in which no target counts, if the model's results
  /// do not depend on them. Moves the rows of inputs, targets and positions together, to [B, columns]. Returns the number of
  /// columns, which depends only on the micro-batch. Call it each time the micro-batch has been filled.
  std::size_t shorten(std::size_t index);
  /// The positions that this rank has computed in the last update: B times the columns of its micro-batches. An evaluation
  /// changes the number.
  std::size_t positions() const;
  /// The layout of a micro-batch in memory.
  BatchLayout batch() const { return facts_.batch(facts_.largest.B); }
  /// The layout of the batch of an evaluation.
  BatchLayout evaluated_batch() const { return facts_.batch(facts_.evaluated.B); }
  /// One update over the micro-batches in next_batch(). The caller calls these four functions in this order. The first three
  /// submit work to the streams and return; update_parameters() waits for the streams. If loss or gradient are not finite, or
  /// exceed the limits in `scalars`, parameters and optimizer state do not change. The result is the same on every rank.
  /// Collective over world. An exception from any of the four ends the update.
  void begin_update(const UpdateScalars& scalars);
  void forward_backward();
  void gradient_norm();
  UpdateResult update_parameters();
  /// Fills the micro-batches by `read`, then calls the four functions above. `check`, if there is one, is called once the
  /// forward and backward passes have run. If it throws, the update ends, and neither parameters nor states have changed.
  UpdateResult run_update(const BatchReader& read, const UpdateScalars& scalars, const std::function<void()>& check = {});
  /// Repeats the last update over the same batch. The update must have had infinite or NaN values, so that it changed nothing.
  /// Returns the first operation whose result on this rank is not finite: activations in forward, or a local gradient before
  /// its reduction. Returns nothing if all are finite. Collective over world.
  std::optional<NonFinite> find_non_finite(const UpdateScalars& scalars);
  /// Returns the sum of the loss over one batch per rank. The sum is over this rank's targets, without those that do not count
  /// (labels below 0). If `losses` is not null, losses[B T] receives those of the targets, 0 for targets that do not count.
  /// Collective over world.
  LossSum evaluate(const BatchReader& read, float* losses = nullptr);
  /// Runs the beginning of an evaluation, to stage `stage` (0: the first stage, 1 + b: block b). Calls `take` once with the
  /// output of that stage on this rank: ModelSizes::activations[stage] bytes of an evaluation, in the type of activations,
  /// valid only during the call. `inner`, if not null, receives the output of a layer inside the stage. Stages before stage
  /// `first` are neither gathered nor run, so what depends on them has no meaning. Collective over world.
  void evaluate_stage(const BatchReader& read, std::size_t stage, const std::function<void(const MemoryView&)>& take,
                      InnerOutput* inner = nullptr, std::size_t first = 0);
  /// Calls `take` once with the gradient of loss_scale / tokens times the sum of the losses with respect to the output of stage
  /// `stage` on this rank (of the first stage: the inputs of the batch), in the type of activations, valid only during the
  /// call. Nothing is dropped, as in an evaluation; the batch has the shape of a micro-batch. The plan must have
  /// PlanOptions::input_gradients. Collective over world.
  void input_gradients(const BatchReader& read, double tokens, double loss_scale,
                       const std::function<void(const MemoryView&)>& take, std::size_t stage = 0);
  /// Runs the forward pass of the tokens in `step` (at most most_rows()), and adds their keys and values to the caches. Writes
  /// logits[n, V] for the n tokens that step.wanted lists. Each rank has its own tokens, or none. The plan must have key-value
  /// caches. Collective over world.
  void decode(const DecodingStep& step, float* logits);
  const kernels::CacheShape& cache() const { return plan_.cache; }
  /// See PositionTables::table_class(), and DecodingStep for its use.
  std::size_t table_class(std::size_t length) const {
    return facts_.model.tables ? facts_.model.tables->table_class(length) : 1;
  }
  /// The largest number of tokens in a decoding step.
  std::size_t most_rows() const { return facts_.largest.rows(); }

  /// From now on, `observer` sees all operations, after the observers before it, until forget() or as long as the executor.
  /// Both functions must be called between lists of operations.
  void observe(Observer& observer) { observers_.push_back(&observer); }
  void forget(const Observer& observer) { std::erase(observers_, &observer); }
  /// From now on, collectives use the groups of `mesh`, which must live until the next call or as long as the executor. For
  /// measurements: with groups that move nothing (SilentCommunicator) the results are meaningless, and the time is that of a
  /// step without collectives. Must be called on every rank with the same kind of groups.
  void communicate_along(const Mesh& mesh) { facts_.mesh = &mesh; }

  /// Returns the matrix products of the model's stages on a GPU, in the lists for updates and for evaluation. Computes nothing.
  std::vector<kernels::Product> products();
  Stream& compute_stream() { return stream(StreamId::compute); }

  /// The measured peak of device memory in use.
  std::size_t peak_bytes() const { return peak_bytes_; }
  /// The bytes that this rank has read from and written to its files so far. All streams must be idle.
  DiskTraffic disk_traffic() const;
  /// The measured size of this rank's files.
  std::size_t file_bytes() const;
  /// The times since the last reset_times().
  const WorkTimes& times() const { return clock_.times(); }
  /// Returns true if times() is known. On a GPU an observer must need the times of the update.
  bool knows_times() const { return !streams_.front()->marks_later() || times().total() > 0; }
  void reset_times() { clock_.reset(); }

 private:
  /// Fills plan.tables for sequences of this length, unless they are. All streams must be idle.
  void fill_tables(std::size_t length);
  /// One run of a list of operations, or of its beginning: the list, its arguments, and the number of operations already
  /// submitted.
  struct Pass {
    Executor* executor;
    ListRun list;
    UpdateScalars scalars;
    std::size_t batch_begin;
    std::span<const std::size_t> columns;  // of each micro-batch
    InnerOutput* inner = nullptr;
    std::vector<bool> skipped = {};  // by operation; empty: none
    std::size_t issued = 0;
  };
  void begin(const std::vector<Operation>& operations, const UpdateScalars& scalars = {});
  void begin(const std::vector<Operation>& operations, std::size_t count, const UpdateScalars& scalars,
             InnerOutput* inner = nullptr);
  std::size_t micro_batches() const;
  std::size_t half_of_batches() const;
  std::size_t shorten(std::int32_t* batch, std::size_t B) const;
  /// The shape of the batches of a list, with all columns.
  const BatchShape& shape_of(const std::vector<Operation>& list) const {
    return &list == &plan_.evaluation ? facts_.evaluated : facts_.largest;
  }
  void skip_stages_before(std::size_t first, std::size_t last);
  void issue(Range range);
  void wait_for_streams();
  void finish();
  void run_and_take(const std::function<void()>& take);
  void run(const std::vector<Operation>& operations);
  void read_for_evaluation(const BatchReader& read, std::size_t B, bool whole);
  /// The columns of the batch that read_for_evaluation() has read.
  std::size_t& evaluated_columns() { return columns_[next_half_ ? 0 : 1].front(); }
  void run_observed(const Pass& pass, std::size_t index);
  void end_list();
  void stop_all_streams() noexcept;
  std::optional<NonFinite> inspect_gradient(std::size_t operation);
  bool is_finite(const Operation& op, const Location& place, std::size_t bytes, DType type, DType sent);
  template <class T>
  T* at(const Location& place) const {
    return facts_.at<T>(place);
  }
  /// A view through which code on the host accesses the memory at `place`. Stream `id` must be idle.
  MemoryView view_of(const Location& place, std::size_t bytes, StreamId id);
  /// The sums (loss, norm) that the last finished list of operations has copied to the host.
  const UpdateSums& report() const { return *at<const UpdateSums>(plan_.report); }
  /// `type`: of the elements; null: fp32.
  ShardState owned(std::string name, const std::vector<Location>& places, DType UnitTypes::*type);
  const UnitTypes& types() const { return facts_.types(); }
  Stream& stream(StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  /// The streams that the plan uses.
  std::span<const std::shared_ptr<Stream>> streams() const { return {streams_.data(), offloads_ ? stream_count : 3}; }

  const Layout& layout_;
  const Plan& plan_;
  const ExecutorOptions options_;
  RankFacts facts_;
  std::vector<std::unique_ptr<Storage>> storages_;                     // one for each entry of plan.spaces
  std::size_t bytes_at_rest_ = 0, bytes_in_use_ = 0, peak_bytes_ = 0;  // of device memory
  const bool offloads_;
  WorkClock clock_;
  std::vector<Observer*> observers_ = {&clock_};
  DecodingStep step_;                                          // the current step
  std::size_t table_class_ = 0;                                // the class of lengths that plan.tables is filled for; 0: none
  std::vector<float> tables_;                                  // for filling plan.tables; empty if only one class is possible
  bool next_half_ = false;                                     // which half of plan.tokens holds the batch of the next update
  ColumnRule rule_;                                            // for shorten()
  std::array<std::vector<std::size_t>, 2> columns_;            // of each micro-batch in each half of plan.tokens
  std::optional<Pass> pass_;                                   // the current run of a list
  std::vector<Event> events_;                                  // one event for the end of each operation of the current list
  std::vector<OperationTime> times_;                           // of the operations of the current list
  std::vector<KernelTimes> kernels_;                           // of the operations of the current list
  std::array<std::shared_ptr<Stream>, stream_count> streams_;  // declared last: work on the streams uses the other members
};

}  // namespace fsdp
