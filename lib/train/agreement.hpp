// Exchanges after each update what each rank knows: requests to stop or save, times, and errors in the data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/save_lock.hpp"
#include "job/job_end.hpp"
#include "job/signals.hpp"
#include "train/decision.hpp"
#include "train/reporter.hpp"

namespace fsdp {

class Agreement {
 public:
  /// `lock` is null on all ranks except rank 0. Collective; throws CollectiveError.
  Agreement(const LoopContext& loop, SignalWatch& watch, SaveLock* lock);

  /// Exchanges the values of all ranks in one all-reduce (sum), and returns what all ranks know. Collective.
  AfterUpdate after(Verdict verdict, bool is_last, const BatchSource& batches, const Reporter& reporter);
  /// Removes the file of a request that the run has met. Not collective.
  void answer_save();
  void answer_stop();
  /// Returns true if this rank knows of a reason to stop. Not collective.
  bool must_stop() { return watch_.poll().stop > 0 || (job_end_ && job_end_->is_near()); }
  /// Why the run stops, for the log of rank 0.
  std::string stop_reason();

  /// What each rank has done in the last update.
  const std::vector<RankWork>& ranks() const { return ranks_; }
  /// The wait for the next batch on the rank that waited longest.
  std::int64_t data_wait_ns() const { return data_wait_ns_; }
  /// The largest of all ranks' mean losses in the last update.
  double largest_loss() const { return largest_loss_; }

 private:
  void warn_of_short_lead(double update_s);

  const LoopContext& loop_;
  SignalWatch& watch_;
  const std::unique_ptr<JobEnd> job_end_;  // on rank 0 with --stop-before
  SaveLock* lock_;
  std::vector<std::int64_t> words_;
  std::vector<RankWork> ranks_;
  std::int64_t data_wait_ns_ = 0;
  double largest_loss_ = 0;
  std::size_t saves_honoured_ = 0, saves_ = 0;
  std::uint64_t updates_ = 0;           // of this start
  bool ends_ = false, wanted_ = false;  // on rank 0: the job's end is near; a later start waits for the save folder
  bool lead_is_short_ = false;          // true: a warning was printed
};

}  // namespace fsdp
