// Finds out when the Slurm job of a run ends, so that the run can save and stop in time without a signal.
#pragma once

#include <optional>
#include <string>

namespace fsdp {

/// The end time of this process's Slurm job. Asking squeue may take some seconds, so only rank 0 has this object; it tells the
/// other ranks.
class JobEnd {
 public:
  /// The run is to stop `lead_s` seconds before the job ends. Throws UserError if there is no Slurm job, if Slurm does not
  /// report its end, or if fewer than `lead_s` seconds are left.
  explicit JobEnd(double lead_s);

  /// Returns true if the run is to stop now. Asks Slurm again before returning true, because the job's time limit may have been
  /// raised.
  bool is_near();
  /// Empty if the job has no time limit.
  std::optional<double> seconds_left() const;
  /// The reason for the stop, for the log.
  std::string reason() const;

 private:
  double lead_s_;
  std::optional<double> end_s_;  // seconds since 1970; empty: the job has no time limit
};

}  // namespace fsdp
