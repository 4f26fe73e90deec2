// Compares the flight records of a job, which say what each rank did last, and finds the rank that the others waited for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "train/flight.hpp"

namespace fsdp {

/// The records of a folder. `problems` describes missing and damaged records; the others are read.
struct FlightFolder {
  std::filesystem::path path;
  std::vector<FlightRecord> records;  // by rank
  std::vector<int> missing;           // ranks
  std::vector<std::string> problems;
};
/// `path` is the folder of the records, or a save folder: then its folder `flight`, or else `flight.old`, where the next run
/// has moved them. Throws UserError if there are no records, and RunError if none can be read.
FlightFolder read_flight_folder(const std::filesystem::path& path);

/// Returns the report as text.
std::string describe_flight(const FlightFolder& folder);
nlohmann::json flight_to_json(const FlightFolder& folder);

/// Returns ranges of ranks: "0-3", "2", "0-1, 4".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace fsdp
