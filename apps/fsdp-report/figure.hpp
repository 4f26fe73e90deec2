// fsdp-report --figure: draws a plan, a trace or other measurements from files of other programs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "fsdp-report/plan_figures.hpp"

namespace fsdp {

struct FigureOptions {
  std::string figure;  // empty: no figure
  std::size_t unit = 1;
  std::optional<Queues> queues;
  bool slots = false;
  std::optional<std::size_t> update, ranks;
};

/// Adds --figure and its options. After parsing, an option that the figure does not use is refused.
void add_figure_options(OptionTable& table, FigureOptions& options);

/// Draws options.figure from `files`, each of which is a path or TITLE=PATH, and returns the SVG file. Throws UserError, also
/// if `out`, the file that the drawing will be written to (empty: none), is one of the files.
std::string draw_figure(const FigureOptions& options, const std::vector<std::string>& files, const std::filesystem::path& out);

}  // namespace fsdp
