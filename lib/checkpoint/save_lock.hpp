// One run at a time writes to a save folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "base/timer.hpp"

namespace fsdp {

/// Returns true if Slurm reports that a job of this cluster is over; false also if it does not answer.
bool slurm_job_is_over(const std::string& job);

/// How to wait for an earlier start of this process's own Slurm job, which still runs if Slurm took its node for dead. It is
/// asked to stop (SaveLock::is_wanted()), but may hang until a collective times out.
struct EarlierStart {
  double patience_s = 0;
  std::function<void(const std::string&)> say = nullptr;  // reports what is waited for
  std::function<bool()> stop = nullptr;                   // true: stop waiting
};

/// The right to write to a save folder, from construction to destruction: the file `lock` in it, which says who has it, and
/// flock(2) on that file, which the system gives back when the process dies, however it dies. Rank 0 takes it for its job.
class SaveLock {
 public:
  /// Makes the folder if it is missing. Throws UserError if it cannot be made or written to, RunError naming the owner if
  /// another run has it. A file left by another host counts as taken, since not every file system has locks that span hosts;
  /// unless it is a Slurm job's and that job has been requeued since (SLURM_RESTART_COUNT), or squeue reports that it is over.
  /// A run that is just being ended is waited for, `patience_s` seconds at most.
  explicit SaveLock(const std::filesystem::path& save_dir, double patience_s = 5, const EarlierStart& earlier_start = {});
  SaveLock(const SaveLock&) = delete;
  /// Gives it back, and removes the folder if this made it and nothing was written.
  ~SaveLock();

  /// Throws RunError if the folder has been moved or replaced since, or the file removed: another run may save there now.
  void require_held() const;
  /// Why a mark that another host left was void, in words; empty if there was none.
  const std::string& taken_over() const { return taken_over_; }
  /// Returns true once a later start of this Slurm job waits for the folder: this run should save and stop. Looks once a
  /// second.
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
