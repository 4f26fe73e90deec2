// The figure of what `fsdp-bench tuning` has printed: speed over memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/figure_parts.hpp"

namespace fsdp {

/// A setting that was measured.
struct TuningPoint {
  std::string strategy;
  bool recomputes = false;
  std::uint64_t batch_size = 0;
  double tokens_per_second = 0, memory_mib = 0;  // of all ranks, of a rank
};

/// Reads the rows of the table that were measured. Throws UserError if the file has no such table or row.
std::vector<TuningPoint> read_tuning(const std::filesystem::path& path);

/// Draws tokens per second over the memory of a rank. Each strategy has a colour; points with recomputation are hollow. A label
/// is a batch size; where there is no place for it, it is only the hint of its point.
Figure draw_tuning(const std::vector<TuningPoint>& points);

}  // namespace fsdp
