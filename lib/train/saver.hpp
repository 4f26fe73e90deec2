// Saves the checkpoints of a run. SaveOptions says when and where to save, and which checkpoints to keep. Asynchronous saves
// are written while training continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/save_lock.hpp"
#include "device/device.hpp"
#include "h5/h5.hpp"

namespace fsdp {

struct LoopContext;
struct RunContext;
struct Validations;

struct SaveOptions {
  std::filesystem::path folder = "checkpoints";
  bool none = false;                 // true: never save
  std::size_t interval_updates = 0;  // updates between saves; 0: no saves by the number of updates
  double interval_s = 0;             // seconds between saves; 0: no saves by time
  bool training_waits = false;
  h5::Compression compression = h5::Compression::none;
  std::string keep_best;  // the metric of validations that chooses the best step, "loss"; empty: no step is the best
  std::size_t keep_last = 0, keep_every = 0;  // kept: the newest keep_last steps (0: all), every keep_every-th update (0: none)
  /// Returns true if saves are asynchronous. An asynchronous save needs a snapshot in memory, which is worth the memory only
  /// for saves at intervals.
  bool meanwhile() const { return !training_waits && (interval_updates > 0 || interval_s > 0); }
};

/// With --keep-best, links to the best step if it is in the save folder. Returns false if it is not, or after a warning. Called
/// on rank 0 only.
bool link_best_step(const RunContext& run, const Validations& validations);

class Saver {
 public:
  /// `header` is the header of each checkpoint, in which save() sets the progress. The update in `header`, at which the run
  /// begins, is not saved. Asynchronous saves write from `snapshot`, which has snapshot_bytes() bytes, or is empty if training
  /// waits for every save. `lock` is the lock of the save folder on rank 0, null on other ranks; a save fails once the lock is
  /// lost.
  Saver(const LoopContext& loop, CheckpointHeader header, Buffer snapshot, const SaveLock* lock);

  /// Saves the current update, unless it is already saved; then only links to the best step, if there is a new one. First
  /// finishes a save that is under way. Returns before the new save is complete, unless `wait` is true or there is no snapshot.
  /// Collective over world.
  void save(bool wait);
  /// Waits until the save under way is complete, then removes older checkpoints. Collective over world.
  void finish();
  /// Reports the save under way if it is complete, which may be long before finish(). Not collective.
  void announce();
  /// With --keep-best, links to the best step if it is saved, on rank 0. Not collective.
  void link_best();

  /// saving() returns true if a save is under way; stage() returns the stage that this rank's part of the save has reached.
  bool saving() const { return save_ != nullptr; }
  CheckpointSave::Stage stage() const { return save_ ? save_->stage() : CheckpointSave::Stage::done; }
  /// Returns true if interval_s has passed on this rank since the last save.
  bool is_due() const { return options_.interval_s > 0 && since_save_.seconds() >= options_.interval_s; }
  /// The update of the last save; before the first save, the update at which the run began.
  std::uint64_t last_update() const { return last_; }
  /// The duration of the last finished save of this run, in seconds; negative before the first.
  double last_duration_s() const { return last_duration_s_; }

 private:
  const LoopContext& loop_;
  const SaveOptions& options_;
  CheckpointHeader header_;
  Buffer snapshot_;
  const SaveLock* lock_;
  std::uint64_t last_;
  std::uint64_t linked_ = 0;  // the update of the step that the link of --keep-best names
  std::unique_ptr<CheckpointSave> save_;
  bool announced_ = false;  // true: the save under way was already reported
  Timer since_began_, since_save_;
  double last_duration_s_ = -1;
  double stall_s_ = 0;  // how long training has waited for the save under way
};

}  // namespace fsdp
