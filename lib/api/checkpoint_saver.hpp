// Writes the checkpoints of a FullyShardedDataParallel, at once or in the background. Internal.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "api/checkpoint_options.hpp"
#include "checkpoint/checkpoint.hpp"
#include "device/device.hpp"
#include "train/metrics.hpp"
#include "train/saver.hpp"

namespace fsdp {

class CheckpointSaver {
 public:
  /// The destructor waits at most `patience_s` seconds (0: no limit) for a save under way.
  CheckpointSaver(Communicator& world, double patience_s);
  CheckpointSaver(const CheckpointSaver&) = delete;
  /// If a save is under way, waits until its files are written, without communication between ranks: other ranks may have
  /// failed. While an exception is thrown, only this rank's file is finished.
  ~CheckpointSaver();

  /// Saves are written from `snapshot` while the caller continues, or at once if it is empty. No save may be under way.
  void set_snapshot(Buffer snapshot) { snapshot_ = std::move(snapshot); }
  /// Finishes the save under way, then saves; adds the validation loss to `progress`. `header` needs neither `progress` nor
  /// `user_data`. Returns the step's folder. Collective over world; throws CollectiveError.
  std::filesystem::path save(const std::filesystem::path& folder, const CheckpointOptions& options, CheckpointHeader header,
                             Progress& progress, const Layout& layout, std::span<const ShardState> states);
  /// Waits until the save under way is complete; then links to the best step and removes older ones. Collective over world;
  /// throws CollectiveError.
  void finish();

  /// Receives lines about saves. May be null.
  std::shared_ptr<Metrics> log;

 private:
  void keep_steps();

  Communicator& world_;
  Buffer snapshot_;
  const double patience_s_;
  const int exceptions_;
  SaveOptions kept_;  // of the save under way
  std::optional<Validations> validations_;
  std::uint64_t update_ = 0;
  std::filesystem::path step_;                     // the last one, if its save has succeeded
  bool has_failed_ = false;                        // the last save has failed, or is under way
  std::optional<Validations> validations_before_;  // those before the last save
  double stall_s_ = 0;                             // how long the caller has waited for the save under way
  std::unique_ptr<CheckpointSave> save_;
};

}  // namespace fsdp
