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
    UpdatePart part = UpdatePart::other;
  };
  std::filesystem::path path;
  std::vector<Event> events;
  std::vector<int> ranks;              // ascending
  std::vector<std::uint64_t> updates;  // ascending
  std::string save_folder;             // of the run; empty: unknown
};

/// Returns true if the file begins as a trace does. Throws the errors of InputFile.
bool is_trace(const std::filesystem::path& path);
/// Throws UserError if the file is no trace or is damaged.
Trace read_trace(const std::filesystem::path& path);

/// The rank that computed longest in an update, and the median rank (of an even number, the lower of the two in the middle).
struct RanksOfUpdate {
  int slowest = 0, median = 0;
  std::vector<int> list() const { return slowest == median ? std::vector{slowest} : std::vector{slowest, median}; }
};
RanksOfUpdate slowest_and_median_rank(const Trace& trace, std::uint64_t update);

/// What the compute stream of a rank spent an update on, in milliseconds. While it has no operation, it waits for the
/// all-gather or the reduction that runs at that time (for the all-gather, if both do), or for something else.
struct UpdateSplit {
  double forward = 0, backward = 0, optimizer = 0, other = 0;  // `forward` and `backward`: with what is computed again
  double gather = 0, reduce = 0, idle = 0;
};
UpdateSplit split_of(const Trace& trace, std::uint64_t update, int rank);

struct TraceView {
  std::optional<std::uint64_t> update = {};  // nothing: the first one
  std::vector<int> ranks = {};               // empty: all
};
/// One update as panels, one for each rank, in milliseconds; `about`: "update 3, 12.3 ms". Throws UserError if the trace has
/// not the update or one of the ranks.
struct TracePanels {
  std::vector<TimelinePanel> panels;
  std::string about;
};
TracePanels panels_of(const Trace& trace, const TraceView& view);
/// Draws these panels. Throws as panels_of() does.
Figure draw_trace_timeline(const Trace& trace, const TraceView& view);

}  // namespace fsdp
