// Compares the flight records of a job, in which each rank has recorded its last operations, and finds the rank that the others
// waited for. An entry is a record of one operation. A lane is a sequence of entries that a rank begins in order: those of one
// stream, or of the host.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "record/flight.hpp"

namespace fsdp {

/// The records that can be read in a folder. `problems` describes damaged records, records of other jobs, and second records of
/// a rank.
struct FlightFolder {
  std::filesystem::path path;
  std::vector<FlightRecord> records;  // by rank
  std::vector<int> missing;           // ranks without a record
  std::vector<std::string> problems;
};
/// Reads the records in `path`, or else in path/flight, or else in path/flight.old, where the next run moves old records; so
/// `path` can be a save folder. Throws UserError if there are no records, and RunError if none can be read.
FlightFolder read_flight_folder(const std::filesystem::path& path);

/// Returns the report as text. It ends with the rank to look at, and the advice.
std::string describe_flight(const FlightFolder& folder);
nlohmann::json flight_to_json(const FlightFolder& folder);

/// Returns ranges of ranks: "0-3", "2", "0-1, 4".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace fsdp
