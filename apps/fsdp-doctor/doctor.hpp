// fsdp-doctor: its checks, in the order in which they run, and their report.
#pragma once

#include <functional>
#include <optional>
#include <span>
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
  std::string_view about;  // completes a message about a rank that hangs in it: "writing and reading in the save folder"
  /// Returns nothing if there is nothing to report. Rank 0's result is printed. Collective.
  std::optional<Finding> (*run)(DoctorJob& job);
  bool is_local = false;  // the check is useful on a rank that is not connected to any other
};
/// Returns all checks, in order.
std::span<const Check> all_checks();

/// Runs the checks of one job; rank 0 prints the report.
class Doctor {
 public:
  /// `words` replaces quantities in messages of the library by options.
  Doctor(const DoctorOptions& options, const Start& start, std::function<std::string(const std::string&)> words);
  ~Doctor();

  /// Runs all checks on all ranks. Returns the exit code. If ranks do not arrive, or a check fails on one rank only, reports it
  /// and ends the job.
  int run(MpiSession& session);
  /// Runs only the local checks, if the launcher's ranks do not see each other; `why` is the first line of the report.
  int run_alone(Finding why);

 private:
  struct State;
  int run(DoctorJob& job, bool local_checks_only);
  /// Handles an error that only this rank has. With several ranks, prints it and ends the job, because the other ranks are
  /// still in the check. With one rank, returns it as a finding, and the checks continue. (An error that all ranks have is
  /// always a finding.)
  Finding failure_of_this_rank(const DoctorJob& job, const Check& check, const std::string& message);
  void expired(const std::string& stage, double limit_s);

  const DoctorOptions& options_;
  const Start& start_;
  std::function<std::string(const std::string&)> words_;
  std::unique_ptr<State> state_;
  Watchdog watchdog_;
};

}  // namespace fsdp
