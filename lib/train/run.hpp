// A training run from its first update to its last, and the few things that it does. The loop of train.cpp calls it. Everything
// but reading ahead is collective over world.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/worker.hpp"
#include "generate/generator.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/spike_filter.hpp"
#include "train/energy.hpp"
#include "train/flight.hpp"
#include "train/group_norms.hpp"
#include "train/saver.hpp"
#include "train/setup.hpp"
#include "train/signals.hpp"
#include "train/trace.hpp"

namespace fsdp {

class Run {
 public:
  /// Takes the memory, fills the weights and reads the first batch. What it does from then on is noted in `flight`. Throws
  /// CollectiveError. `setup` and `flight` must outlive it.
  Run(Setup& setup, FlightLanes& flight);
  Run(const Run&) = delete;

  /// Waits for this rank's part of the next update, which is read while the one before is computed: a rank that cannot read
  /// says so while all can still save. Not collective. Nothing if all updates are done.
  void await_batch();
  /// How long that was.
  std::int64_t data_wait_ns() const { return data_wait_ns_; }
  bool can_read() const { return data_problem_ == nullptr; }
  /// Where some rank could not: all throw its CollectiveError. Everything has been saved.
  [[noreturn]] void refuse_data();

  /// One update, of the batch that was read ahead, in the sections of the plan: see Executor. update_parameters() ends it. It
  /// returns false if the update was left out, as it overflowed in fp16 or was a spike: its batch is used up, and nothing else
  /// is new but the loss scale and the statistics of spikes. It throws CollectiveError if the update is not finite otherwise.
  void begin_update();
  void forward_backward();
  void gradient_norm();
  bool update_parameters();
  /// How long this rank has computed in the last update, without waiting for others; 0: unknown (a GPU).
  std::int64_t computing_ns() const;
  /// Writes the metrics of the last update, which was not left out. `computing_ns`: of all ranks; `data_wait_ns`: of the one
  /// that waited longest for the next batch. Not collective.
  void report(std::span<const std::int64_t> computing_ns, std::int64_t data_wait_ns);
  void validate(const std::function<bool()>& stop = {});
  /// Prints what the model says now, if that is asked for.
  void sample();
  /// A checkpoint, unless this update has been saved already. Where saves are asynchronous it goes on while steps are done,
  /// unless `wait`.
  void save(bool wait);
  Saver& saver() { return *saver_; }
  const Saver& saver() const { return *saver_; }

  FlightLanes& flight() const { return flight_; }
  /// All updates or all passes over the data are done.
  bool done() const { return setup_.done(); }
  std::uint64_t update() const { return setup_.progress.update; }
  /// For requests that come from now until the next update is done.
  Outlook outlook() const { return {update() + 1, last_update_s_, saver_->last_duration_s()}; }

  void warn(const std::string& text) { setup_.warn(text); }
  void say_stopping(const std::string& reason) { setup_.metrics->stop(update(), reason); }
  /// The closing lines: how it went, planned beside measured memory, how to go on.
  void finish(const std::string& next);

 private:
  /// The update that begins after so many sequences.
  void begin_reading(std::uint64_t position);
  [[noreturn]] void refuse(const UpdateResult& result);
  void fill_weights();
  void require_memory();
  void write_trace();
  std::optional<Straggler> find_straggler(std::span<const std::int64_t> computing_ns) const;

  Setup& setup_;
  FlightLanes& flight_;
  ShardedModel& sharded_;
  std::uint64_t start_tokens_;
  std::optional<LossScaler> scaler_;  // fp16
  std::optional<SpikeFilter> spikes_;
  std::optional<EnergyMeter> energy_;
  std::vector<std::string> hosts_;  // of all ranks
  TrainMetrics last_;               // the last update
  std::optional<GroupNorms> group_norms_;
  std::optional<Generator> generator_;  // of samples
  std::optional<Saver> saver_;
  std::optional<Recorder> recorder_;  // until its updates are written
  std::exception_ptr data_problem_;   // why the next one could not be read
  std::int64_t data_wait_ns_ = 0;
  UpdateScalars scalars_;  // of the update under way
  Timer since_update_;
  double updating_s_ = 0;  // computing updates and waiting for their data, those that were left out among them
  double last_update_s_ = -1;
  Worker reader_{"fsdp-read"};  // last: it writes into the executor's memory
};

}  // namespace fsdp
