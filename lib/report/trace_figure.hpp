// The timeline of a trace: when each operation of an update ran, by rank and stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/figure_parts.hpp"

namespace fsdp {

/// What a trace file holds, without the arrows between operations.
struct Trace {
  struct Event {
    int rank = 0;
    std::uint64_t update = 0;
    double begin_us = 0, length_us = 0;
    std::string title, stream, label;  // label: the number of its block, or its unit
  };
  std::filesystem::path path;
  std::vector<Event> events;
  std::vector<int> ranks;              // ascending
  std::vector<std::uint64_t> updates;  // ascending
};

/// Returns true if the file begins as a trace does. Throws the errors of InputFile.
bool is_trace(const std::filesystem::path& path);
/// Throws UserError if the file is no trace or is damaged.
Trace read_trace(const std::filesystem::path& path);

struct TraceView {
  std::optional<std::uint64_t> update = {};  // nothing: the first one
  std::vector<int> ranks = {};               // empty: all
  TimelineColours colours = {};
};
/// Draws one update, a panel for each rank. Throws UserError if the trace has not the update or one of the ranks.
Figure draw_trace_timeline(const Trace& trace, const TraceView& view);

}  // namespace fsdp
