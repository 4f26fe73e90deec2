// Ensures that only one run at a time writes to a save folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "base/timer.hpp"

namespace fsdp {

/// Returns true if Slurm reports that the job with this number is over. Returns false if it reports otherwise or does not
/// answer. The job must be of this cluster.
bool slurm_job_is_over(const std::string& job);

/// How to wait for an earlier start of the same batch job. If a scheduler requeues a job because it wrongly took a node for
/// dead, the earlier start may still run. The later one asks it to stop (SaveLock::is_wanted()), but it may hang until a
/// collective times out.
struct EarlierStart {
  double patience_s = 0;
  std::function<void(const std::string&)> say = nullptr;  // called with a message about the wait
  std::function<bool()> stop = nullptr;                   // returns true if the wait is to end
};

/// The right to write to a save folder, from construction to destruction. It consists of the file `lock` in the folder, which
/// names the owner, and flock(2) on that file, which the system releases whenever the process ends. Rank 0 takes the lock for
/// all ranks.
class SaveLock {
 public:
  /// Makes the folder if it is missing. Throws UserError if it cannot be made or written to, and RunError with the owner if
  /// another run has the lock. A lock file from another host counts as a held lock, since not every file system has locks
  /// across hosts. It is ignored if its owner is an earlier start of this batch job (BatchJob::restarts), or if squeue reports
  /// that the owner's Slurm job is over. Waits at most `patience_s` seconds for a run that is just ending.
  explicit SaveLock(const std::filesystem::path& save_dir, double patience_s = 5, const EarlierStart& earlier_start = {});
  SaveLock(const SaveLock&) = delete;
  /// Releases the lock. Removes the folder if this object made it and it is empty.
  ~SaveLock();

  /// Throws RunError if the folder was moved or replaced, or the lock file was removed: another run may be saving there now.
  void require_held() const;
  /// Why a lock file from another host was ignored; empty if there was none.
  const std::string& taken_over() const { return taken_over_; }
  /// Returns true after a later start of this batch job has begun to wait for the folder: this run should save and stop. Checks
  /// the lock file at most once a second.
  bool is_wanted();

 private:
  std::filesystem::path folder_, path_;
  std::string taken_over_;
  bool made_folder_;
  int fd_ = -1;
  std::size_t mark_bytes_ = 0;
  bool wanted_ = false;
  Timer since_look_;
};

}  // namespace fsdp
