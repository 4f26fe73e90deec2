// What the ranks of a job did last: their flight records side by side, and which rank the others waited for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "train/flight.hpp"

namespace fsdp {

/// The records of a folder. A record that is missing or damaged is named in `problems`, and the others are read.
struct FlightFolder {
  std::filesystem::path path;
  std::vector<FlightRecord> records;  // by rank
  std::vector<int> missing;           // ranks
  std::vector<std::string> problems;
};
/// `path`: the folder of the records, or the save folder that has it as `flight`, or, of a run that another one followed, as
/// `flight.old`. Throws UserError if there is no record that can be read.
FlightFolder read_flight_folder(const std::filesystem::path& path);

/// What they say, for people.
std::string describe_flight(const FlightFolder& folder);
nlohmann::json flight_to_json(const FlightFolder& folder);

/// "0-3", "2", "0-1, 4".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace fsdp
