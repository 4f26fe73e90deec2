// Saves the checkpoints of a model, at once or while the caller continues, and keeps the steps that SaveOptions names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "device/device.hpp"
#include "h5/h5.hpp"

namespace fsdp {

struct SaveOptions {
  std::filesystem::path folder = "checkpoints";
  bool none = false;                 // true: never save
  std::size_t interval_updates = 0;  // updates between saves; 0: no saves by the number of updates
  std::size_t interval_epochs = 0;   // passes over the data between saves; 0: no saves by passes
  double interval_s = 0;             // seconds between saves; 0: no saves by time
  bool interval_auto = false;        // the interval follows from the cost of a save and mtbf_s (optimal_interval_s)
  double mtbf_s = 0;                 // mean time between failures of the job, in seconds; 0: not given
  bool training_waits = false;
  h5::Compression compression = h5::Compression::none;
  std::string files_per_checkpoint;  // a number, or "node"; empty: a file for each rank
  int files = 0;                     // that number, once it is known; 0: a file for each rank
  std::string keep_best;             // the metric of validations that chooses the best step, "loss"; empty: no step is the best
  std::size_t keep_last = 0, keep_every = 0;  // kept: the newest keep_last steps (0: all), every keep_every-th update (0: none)
  /// Returns true if saves are asynchronous. An asynchronous save needs a snapshot in memory, which is worth the memory only
  /// for saves at intervals.
  bool meanwhile() const {
    return !training_waits && (interval_updates > 0 || interval_epochs > 0 || interval_s > 0 || interval_auto);
  }
};

/// Sets options.files if there is to be one for each node. `node` has the ranks of this node. Collective over world.
void count_files(SaveOptions& options, Communicator& world, Communicator& node);

/// The time between saves that loses least, of training and of work since the last save: sqrt(2 cost_s mtbf_s), if a save stops
/// training for cost_s and failures are mtbf_s apart on average (Young, "A first order approximation to the optimum checkpoint
/// interval", CACM 1974; Daly's later terms, FGCS 2006, are below 1 % while cost_s < mtbf_s / 2500). At most mtbf_s.
double optimal_interval_s(double cost_s, double mtbf_s);

struct SaveMetrics {
  std::uint64_t step = 0;
  std::filesystem::path folder;
  std::uint64_t bytes = 0;      // of the ranks' files and the index
  double ms = 0, stall_ms = 0;  // duration of the save; the part of it during which training waited
  double interval_s = 0;        // with SaveOptions::interval_auto: the time from this save to the next one
};

/// The functions that a Saver calls. Each may be empty, but then on all ranks. If one of the first two throws, the save fails.
struct SaveListener {
  std::function<void()> may_begin = {};
  std::function<void()> may_complete = {};  // before the step becomes complete; called by any thread
  std::function<void(const SaveMetrics&)> saved = {};
  std::function<void(const std::string&)> warn = {};
};

class Saver {
 public:
  /// The destructor waits at most `patience_s` seconds (0: no limit) for a save under way.
  Saver(Communicator& world, SaveListener listener, double patience_s);
  Saver(const Saver&) = delete;
  /// If a save is under way, waits until its files are written, without communication between ranks: other ranks may have
  /// failed. While an exception is thrown, only this rank's file is finished.
  ~Saver();

  /// Saves are written from `snapshot` while the caller continues, or at once if it is empty. No save may be under way.
  void set_snapshot(Buffer snapshot) { snapshot_ = std::move(snapshot); }
  void set_listener(SaveListener listener) { listener_ = std::move(listener); }
  /// The model was loaded: this update need not be saved into this folder.
  void begin_at(const std::filesystem::path& folder, std::uint64_t update) { kept_.folder = folder, update_ = update; }

  /// Saves the update of `header`, unless this object's last save or begin_at() was of the same update in the same folder; then
  /// only links to the best step, if there is a new one. First finishes the save under way. Returns before the new one is
  /// complete, unless `wait` is true or there is no snapshot. Returns the step's folder; empty after begin_at(). Collective
  /// over world; throws CollectiveError.
  std::filesystem::path save(const SaveOptions& options, const CheckpointHeader& header, const Layout& layout,
                             std::span<const ShardState> states, bool wait);
  /// Waits until the save under way is complete; then links to the best step and removes older ones. Returns at once if there
  /// is none. Collective over world; throws CollectiveError.
  void finish();
  /// Reports the save under way if it is complete, which may be long before finish(). Not collective.
  void announce();
  /// If SaveOptions::keep_best is set: links to the best step if it is there, and is not linked yet. Not collective.
  void link_best(const SaveOptions& options, const std::optional<Validations>& validations);

  /// Returns true if this object's last save, which may be under way, was of this update in this folder.
  bool is_saved(const SaveOptions& options, std::uint64_t update) const {
    return update_ == update && kept_.folder == options.folder;
  }
  /// saving() returns true if a save is under way; stage() returns the stage that this rank's part of the save has reached.
  bool saving() const { return save_ != nullptr; }
  CheckpointSave::Stage stage() const { return save_ ? save_->stage() : CheckpointSave::Stage::done; }
  /// Returns true if `interval_s` has passed on this rank since the last save.
  bool is_due(double interval_s) const { return interval_s > 0 && since_save_.seconds() >= interval_s; }
  /// The time between saves: that of `options`; with SaveOptions::interval_auto optimal_interval_s() by the last save, but not
  /// less than ten times its duration (less if failures are frequent), and 0 before the first save is complete.
  double interval_s(const SaveOptions& options) const;
  /// Returns true if the last save has failed.
  bool has_failed() const { return has_failed_; }
  /// The update of the last save or begin_at(); 0 before the first, and after a save that failed.
  std::uint64_t last_update() const { return update_.value_or(0); }
  /// The duration of the last finished save, in seconds; negative before the first.
  double last_duration_s() const { return last_duration_s_; }

 private:
  void keep_steps();

  Communicator& world_;
  SaveListener listener_;
  Buffer snapshot_;
  const double patience_s_;
  const int exceptions_;
  SaveOptions kept_;  // of the last save
  std::optional<Validations> validations_;
  std::optional<std::uint64_t> update_;  // of the last save; empty: there was none, or it failed
  bool has_failed_ = false;
  std::filesystem::path linked_;  // the step that the link of the best one names
  std::filesystem::path step_;    // that was saved last, or is being saved; empty: none
  bool announced_ = false;
  Timer since_began_, since_save_;
  double last_duration_s_ = -1, stall_s_ = 0;  // stall_s_: how long the caller has waited for the last save
  std::unique_ptr<CheckpointSave> save_;
};

}  // namespace fsdp
