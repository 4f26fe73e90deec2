// fsdp-doctor: checks, in the order in which they run, and the report of them.
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
  std::string_view about;  // for messages about a rank that hangs in it: "whether all nodes share the save folder"
  /// Nothing where there is nothing to say. What rank 0 returns is printed. Collective.
  std::optional<Finding> (*run)(DoctorJob& job);
  bool is_local = false;  // tells something of a rank to which no other one is connected
};
/// All of them, in their order.
std::span<const Check> all_checks();

/// The checks of one job, and what is printed of them, by rank 0.
class Doctor {
 public:
  /// `words` names options in messages of the library.
  Doctor(const DoctorOptions& options, const Start& start, std::function<std::string(const std::string&)> words);
  ~Doctor();

  /// All checks on all ranks. Returns the exit code. Ends the job where ranks do not come, or one has failed alone, once that
  /// is said.
  int run(MpiSession& session);
  /// Only those that need no other rank, where the launcher's ranks do not see each other; `why` is the first line.
  int run_alone(Finding why);

 private:
  struct State;
  int run(DoctorJob& job, bool local_checks_only);
  /// What all ranks have failed by is a finding, and the next check follows. What one rank fails by is said by it, and ends the
  /// job, as the others are in the midst of the check. A job of one rank goes on.
  Finding failure_of_this_rank(const DoctorJob& job, const Check& check, const std::string& message);
  void expired(const std::string& stage, double limit_s);

  const DoctorOptions& options_;
  const Start& start_;
  std::function<std::string(const std::string&)> words_;
  std::unique_ptr<State> state_;
  Watchdog watchdog_;
};

}  // namespace fsdp
