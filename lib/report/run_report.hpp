// Finds what belongs to runs, and writes their page or table.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "report/page.hpp"
#include "report/run.hpp"

namespace fsdp {

struct FoundRuns {
  std::vector<Run> runs;
  PageParts parts;
};
/// Reads the runs at `paths` (read_runs()), and the trace and the flight records of each, as far as they are there; what cannot
/// be read becomes a note of its run. Runs of the same name get longer names, with the folders above. Throws UserError.
FoundRuns find_runs(const std::vector<std::filesystem::path>& paths);

/// Writes a file, under a temporary name until it is complete. Throws UserError if it cannot be written.
void write_text(const std::filesystem::path& path, std::string_view text);
/// Writes the page of the runs by write_text().
void write_page(const FoundRuns& found, const std::filesystem::path& path);

/// A line for each update and validation of the runs, with the names of columns in the first line, as RFC 4180
/// has it.
std::string to_csv(const std::vector<Run>& runs);

}  // namespace fsdp
