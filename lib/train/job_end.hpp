// When the Slurm job of a run ends, so that the run can save and stop in time, without being told by a signal.
#pragma once

#include <optional>
#include <string>

namespace fsdp {

/// The end of this process's Slurm job. It asks squeue, which may take some seconds: one rank has it, and tells the others.
class JobEnd {
 public:
  /// The run shall stop `lead_s` seconds before the end. Throws UserError where there is no job, where Slurm does not say when
  /// it ends, and where less than `lead_s` is left.
  explicit JobEnd(double lead_s);

  /// Whether the run shall stop. When the time has come Slurm is asked again, as somebody may have given the job more.
  bool is_near();
  /// Nothing if the job has no end.
  std::optional<double> seconds_left() const;
  /// Why the run stops, in words.
  std::string reason() const;

 private:
  double lead_s_;
  std::optional<double> end_s_;  // since 1970; nothing: never
};

}  // namespace fsdp
