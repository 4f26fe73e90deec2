// When a run saves, where, which of its checkpoints stay, and the save that goes on while training does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/save_lock.hpp"
#include "device/device.hpp"
#include "h5/h5.hpp"

namespace fsdp {

struct LoopContext;

struct SaveOptions {
  std::filesystem::path folder = "checkpoints";
  bool none = false;                 // nothing is ever saved
  std::size_t interval_updates = 0;  // 0: at the end and on request only
  double interval_s = 0;             // likewise
  bool training_waits = false;
  h5::Compression compression = h5::Compression::none;
  std::size_t keep_last = 0, keep_every = 0;  // 0: all; none beside the last
  /// Whether saves are written while training goes on: those by interval; those on request alone are not worth the memory.
  bool meanwhile() const { return !training_waits && (interval_updates > 0 || interval_s > 0); }
};

class Saver {
 public:
  /// Saves say of themselves what `header` says, whose update needs no save. A save that goes on while training does writes
  /// from `snapshot`, snapshot_bytes() long; it is empty where training waits for every save. `lock` is rank 0's, null on the
  /// others; a save fails once it is lost.
  Saver(const LoopContext& loop, CheckpointHeader header, Buffer snapshot, const SaveLock* lock);

  /// Saves the update where the run stands, unless that has been done; a save that goes on is finished first. The new one goes
  /// on while its caller computes, unless `wait`. Collective over world.
  void save(bool wait);
  /// Waits until the save under way is complete, then removes older ones. Collective over world.
  void finish();
  /// Reports the save under way if it is complete, possibly long before finish(). Not collective.
  void announce();

  /// Whether a save is under way, and the stage of this rank's part of it.
  bool saving() const { return save_ != nullptr; }
  CheckpointSave::Stage stage() const { return save_ ? save_->stage() : CheckpointSave::Stage::done; }
  /// Whether the interval by the clock has passed on this rank since the last save.
  bool is_due() const { return options_.interval_s > 0 && since_save_.seconds() >= options_.interval_s; }
  /// The update that was saved last, or where the run began.
  std::uint64_t last_update() const { return last_; }
  /// How long the last save took that this run has finished, in seconds; negative before.
  double last_duration_s() const { return last_duration_s_; }

 private:
  const LoopContext& loop_;
  const SaveOptions& options_;
  CheckpointHeader header_;
  Buffer snapshot_;
  const SaveLock* lock_;
  std::uint64_t last_;
  std::unique_ptr<CheckpointSave> save_;
  bool announced_ = false;  // the present save
  Timer since_began_, since_save_;
  double last_duration_s_ = -1;
  double stall_s_ = 0;  // how long training has stood still for the present save
};

}  // namespace fsdp
