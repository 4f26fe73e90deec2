// Finds out when the batch job of a run ends, so that the run can save and stop in time without a signal.
#pragma once

#include <optional>
#include <string>

#include "base/batch_job.hpp"

namespace fsdp {

/// What a scheduler reports about the end of a job.
struct JobEndAnswer {
  bool known = false;           // false: the scheduler's answer has no end, or cannot be understood
  std::optional<double> end_s;  // seconds since 1970; empty: the job has no time limit
};

/// Reads what the scheduler's command has printed, `now_s` seconds after 1970:
///   Slurm  squeue -o %e with SLURM_TIME_FORMAT=%s: the end, in seconds since 1970, or NONE
///   PBS    qstat -f: the start (stime; Torque: start_time) and Resource_List.walltime
///   LSF    bjobs -o time_left: "hours:minutes L", or "-" without a limit. Other letters than L mean an estimate by the user,
///          at which LSF does not end the job; the answer is then unknown.
///   Flux   flux job timeleft: the seconds that are left; 2^32 - 1 without a limit
/// Sources: manuals of Slurm 22.05, PBS Professional 2022.1 and LSF 10.1, flux-job(1) of flux-core 0.88.
JobEndAnswer read_job_end(Scheduler scheduler, const std::string& answer, double now_s);

/// The end time of this process's batch job. Asking the scheduler may take some seconds, so only rank 0 has this object; it
/// tells the other ranks.
class JobEnd {
 public:
  /// The run is to stop `lead_s` seconds before the job ends. Throws UserError if there is no batch job, if its scheduler does
  /// not report its end, or if fewer than `lead_s` seconds are left.
  explicit JobEnd(double lead_s);

  /// Returns true if the run is to stop now. Asks the scheduler again before returning true, because the job's time limit may
  /// have been raised.
  bool is_near();
  /// Empty if the job has no time limit.
  std::optional<double> seconds_left() const;
  /// The reason for the stop, for the log. slurm/other-schedulers.sh recognises it in the metrics.
  std::string reason() const;

 private:
  double lead_s_;
  BatchJob job_;
  std::optional<double> end_s_;  // seconds since 1970; empty: the job has no time limit
};

}  // namespace fsdp
