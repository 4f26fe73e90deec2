// fsdp-doctor --transports: times the collectives of an update with each transport and with settings that computing centres
// publish, each in a job of its own, which is ended if it hangs.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp-doctor/job.hpp"
#include "job/launch.hpp"

namespace fsdp {

/// What a row is for: GPUs with NCCL, CPUs, or CPUs with Open MPI.
enum class TransportOf { any, nccl, cpu, open_mpi };

/// A row: environment variables, or options of the program, that select a transport.
struct Transport {
  std::string_view name;
  TransportOf of;
  std::string_view needs;  // a folder of the system, without which the row is left out; empty: none
  std::vector<std::pair<std::string, std::string>> variables;
  std::vector<std::string> options;  // of fsdp-train, fsdp-bench and the others
  std::string_view source;           // who recommends it; empty: the library's own choice of transports
};
/// The table. The first row changes nothing.
const std::vector<Transport>& transports();

/// What came of one row.
struct Trial {
  const Transport* transport = nullptr;
  enum class Result { done, failed, hung, left_out } result = Result::done;
  double update_ms = 0;    // of all collectives of an update, if `done`
  std::string connection;  // what connected the ranks, if `done`; else why there is no time
};

/// Reads what fsdp-bench collectives --json has printed, among lines of launchers. After `limit_s` seconds its ranks were
/// killed.
Trial judge_trial(const Transport& transport, const ChildEnd& end, double limit_s);
/// Returns true if the present settings work.
bool present_settings_work(std::span<const Trial> trials);
/// Returns the table, and the fastest row as lines for a job script. A row that is at most 3 % faster than the present
/// settings, which may be chance, is not recommended.
std::string describe(std::span<const Trial> trials);
nlohmann::json to_json(std::span<const Trial> trials);

/// Runs all rows, and prints the result. `library` is the version text of MPI. Returns the exit code: 1 if the present settings
/// fail or hang. Throws UserError.
int run_transports(const DoctorOptions& options, const std::string& library);

}  // namespace fsdp
