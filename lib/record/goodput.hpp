// How the time of a run was spent, over all of its starts (the first one and each resumption). Its goodput is the share of the
// time that was spent in updates that count.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

/// Seconds on rank 0. between_s is measured with the wall clock. All other durations are measured with monotonic clocks and are
/// parts of running_s. The rest of running_s is time between updates: writing metrics, agreeing on requests, waiting for data.
struct TimeSpent {
  double running_s = 0;  // from the start of each process to its last line in the metrics file
  double useful_s = 0;   // in updates that count
  double lost_s = 0;     // in updates that a later start had to repeat
  double skipped_s = 0;  // in updates that were left out because of an overflow or a spike
  double saves_s = 0;    // while training waited for saves
  double validation_s = 0;
  double startup_s = 0;  // from the start of each process to its first update
  double between_s = 0;  // from the end of one process to the start of the next
  std::uint64_t starts = 0;

  /// useful_s / running_s, at most 1.
  double goodput() const;
  TimeSpent& operator+=(const TimeSpent& other);
};

nlohmann::json to_json(const TimeSpent& spent);
/// A field that is missing or not a number becomes 0.
TimeSpent time_spent_from_json(const nlohmann::json& json);
/// "goodput 91.3 %: updates 10.2 s of 11.2 s; startup 612 ms, saves 201 ms".
std::string describe(const TimeSpent& spent);

}  // namespace fsdp
