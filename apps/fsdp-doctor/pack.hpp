// fsdp-doctor --pack: one archive about a run, which a user attaches to a ticket. It has texts and flight records, no data and
// no weights.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace fsdp {

/// The most bytes that the archive takes of one file, and of all flight records together.
inline constexpr std::size_t most_of_a_file = std::size_t{1} << 20, most_of_flight = std::size_t{4} << 20;

/// Returns true if an environment variable may hold a secret: its name has a word such as TOKEN or KEY, or its value has a URL
/// with a password.
bool may_be_secret(std::string_view name, std::string_view value);

/// Returns the file, or its first and last lines with a note between them if the file has more than `most` bytes. Throws the
/// errors of InputFile.
std::string ends_of_file(const std::filesystem::path& path, std::size_t most = most_of_a_file);

/// Returns lines of metrics or of a run's output without text of the data and of the model (samples), which may repeat the
/// data. ends_of_file() may have cut them.
std::string without_data(std::string_view lines);

class Pack {
 public:
  /// Reads the run at `run`, a save folder or a metrics file. An empty `out` means fsdp-pack-NAME.tar.gz in this folder. Throws
  /// UserError if there is no run, or if `out` exists, has another ending or is in a folder that cannot be written to.
  Pack(const std::filesystem::path& run, std::filesystem::path out);

  /// The folder of the run.
  const std::filesystem::path& folder() const { return folder_; }
  /// Writes the archive with `report`, the text of fsdp-doctor's checks. Returns the list of its files for the user. On an
  /// error, nothing is left. Throws RunError if the disk is full or `tar` fails.
  std::string write(const std::string& report) const;

 private:
  struct Entry;
  std::vector<Entry> entries(const std::string& report) const;

  std::filesystem::path folder_, metrics_, out_;
  std::string name_;
  nlohmann::json start_ = nlohmann::json::object();  // the newest start line of the metrics; empty if there are none
  std::vector<std::string> jobs_;                    // the numbers of the jobs in which the run was started
};

}  // namespace fsdp
