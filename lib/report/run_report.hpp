// Reads runs with their traces and flight records, and writes their page or table.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "report/run.hpp"

namespace fsdp {

/// Reads the runs at `paths` by read_runs(). Runs of the same name get numbers or longer names. Throws UserError.
std::vector<Run> read_named_runs(const std::vector<std::filesystem::path>& paths);
/// Also reads the trace and the flight records of each run, if they exist; what cannot be read becomes a note of its run.
std::vector<Run> with_parts(std::vector<Run> runs);

/// The files that were read for the runs: metrics and traces.
std::vector<std::filesystem::path> inputs_of(const std::vector<Run>& runs);
/// Throws UserError if `out` is one of the files that are read.
void require_no_input(const std::filesystem::path& out, const std::vector<std::filesystem::path>& inputs);

/// Returns the page of one or several runs (page.cpp): one HTML file with its style, drawings and script, which needs no
/// network. Without script it is complete; with script it shows the values under the pointer, hides curves, and smooths them.
/// All text from files is escaped.
std::string make_page(const std::vector<Run>& runs);
/// The losses of the runs over updates, as a figure of its own. Throws UserError if there are none.
Figure draw_losses(const std::vector<Run>& runs);

/// Writes a file durably, under a temporary name until it is complete. A link, a terminal or a pipe is written directly, unless
/// the link was made by another user; /dev/stdout continues what was printed before. Throws UserError if it cannot be written,
/// and RunError if the disk is full or fails.
void write_text(const std::filesystem::path& path, std::string_view text);
/// Writes the page of the runs by write_text().
void write_page(const std::vector<Run>& runs, const std::filesystem::path& path);

/// A line for each update and validation of the runs, with the names of columns in the first line. Fields are quoted as in RFC
/// 4180; lines end with '\n'.
std::string to_csv(const std::vector<Run>& runs);

}  // namespace fsdp
