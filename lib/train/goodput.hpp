// Where the time of a run has gone, with all its starts: what part of it made updates that count.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

/// Seconds of rank 0, by clocks that nobody sets but for between_s. What is left of running_s is the time between updates:
/// metrics, requests, waiting for data.
struct TimeSpent {
  double running_s = 0;  // from the start of each process to its last line
  double useful_s = 0;   // in updates that count
  double lost_s = 0;     // in updates that a later start did again
  double skipped_s = 0;  // in updates that were left out
  double saves_s = 0;    // training stood still for saves
  double validation_s = 0;
  double startup_s = 0;  // before the first update of each start
  double between_s = 0;  // between the starts: no part of running_s
  std::uint64_t starts = 0;

  /// Between 0 and 1.
  double goodput() const;
  TimeSpent& operator+=(const TimeSpent& other);
};

nlohmann::json to_json(const TimeSpent& spent);
/// What is missing, or no number, counts as 0.
TimeSpent time_spent_from_json(const nlohmann::json& json);
/// "goodput 91.3 %: updates 10.2 s of 11.2 s; startup 612 ms, saves 201 ms".
std::string describe(const TimeSpent& spent);

}  // namespace fsdp
