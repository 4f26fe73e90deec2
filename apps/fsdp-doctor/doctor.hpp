// fsdp-doctor: the checks, in the order in which they run, and the report of their findings. A finding is the result of a check
// (report.hpp).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/options.hpp"
#include "comm/mpi_session.hpp"
#include "fsdp-doctor/job.hpp"
#include "fsdp-doctor/report.hpp"
#include "fsdp-doctor/watchdog.hpp"

namespace fsdp {

OptionTable doctor_option_table(DoctorOptions& options);

struct Check {
  std::string_view name;
  std::string_view about;  // what is checked, for messages about a rank that hangs: "writing and reading in the save folder"
  /// Runs the check. Returns nothing if there is nothing to report. Only rank 0's finding is printed. Collective.
  std::optional<Finding> (*run)(DoctorJob& job);
  bool is_local = false;  // true if the check is useful on a rank that is not connected to other ranks
};

/// Runs the checks of one job; rank 0 prints the report.
class Doctor {
 public:
  /// `words` replaces names in backquotes in messages of the library, such as `save folder`, by names of options.
  Doctor(const DoctorOptions& options, const Start& start, std::function<std::string(const std::string&)> words);
  ~Doctor();

  /// Runs all checks on all ranks. Returns the exit code. If some ranks do not arrive at a check, or the check throws on one
  /// rank only, reports that and ends the job.
  int run(MpiSession& session);
  /// Runs only the local checks, for a process that MPI does not connect with others. `why` is the first line of the report.
  int run_alone(Finding why);
  /// Returns the report so far, as it is printed.
  std::string report() const;

 private:
  struct State;
  int run(DoctorJob& job, bool local_checks_only);
  /// Handles an error of this rank only. In a job of several ranks, prints the error and throws FailedAlone, which ends the
  /// job, because the other ranks still wait in the check. In a job of one rank, returns the error as a finding.
  Finding failure_of_this_rank(const DoctorJob& job, const Check& check, const std::string& message);
  void expired(const std::string& stage, double limit_s);

  const DoctorOptions& options_;
  const Start& start_;
  std::function<std::string(const std::string&)> words_;
  std::unique_ptr<State> state_;
  Watchdog watchdog_;
};

}  // namespace fsdp
