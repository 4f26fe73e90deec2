// What the figures of plans and traces share: colours, text sizes, legends, and timelines, that is, rows of boxes over time.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.hpp"
#include "plan/kind.hpp"
#include "report/svg.hpp"

namespace fsdp {

/// Light colours for dark text that colour-blind people can distinguish (Paul Tol, "Colour Schemes", 2021).
namespace paint {
inline constexpr std::string_view ink = "#222", quiet = "#555", rule = "#bbb", grid = "#e4e4e4";
inline constexpr std::string_view blue = "#77aadd", cyan = "#99ddff", mint = "#44bb99", pear = "#bbcc33",
                                  light_pear = "#dde5a0", yellow = "#eedd88", orange = "#ee8866", pink = "#ffaabb",
                                  grey = "#dddddd", light_cyan = "#ddf3ff", light_pink = "#ffe0e6";
}  // namespace paint

/// The width of a figure, and the space at its sides. GitHub shows pages of up to 880 pixels without shrinking.
inline constexpr double figure_width = 880, figure_margin = 14;
/// The outline of a box.
inline constexpr Stroke box_edge = {.colour = paint::quiet, .width = 0.6};
/// The size of the texts in boxes and legends, in pixels.
inline constexpr double small_size = 11;
inline constexpr TextStyle small_text = {.size = small_size}, small_middle = {.size = small_size, .anchor = Anchor::middle},
                           small_end = {.size = small_size, .anchor = Anchor::end};
inline constexpr TextStyle quiet_text = {.size = small_size, .fill = paint::quiet},
                           quiet_middle = {.size = small_size, .anchor = Anchor::middle, .fill = paint::quiet},
                           quiet_end = {.size = small_size, .anchor = Anchor::end, .fill = paint::quiet};
inline constexpr TextStyle bold_text = {.bold = true}, bold_middle = {.anchor = Anchor::middle, .bold = true},
                           bold_end = {.anchor = Anchor::end, .bold = true};

/// The width of `text` in this style.
double width_of(std::string_view text, const TextStyle& style);
/// Writes `text`, cut so that it is at most `width` pixels wide.
void fitted_text(Svg& svg, double x, double y, double width, std::string_view text, const TextStyle& style);
/// Writes `text` if it is at most `width` pixels wide, and else nothing.
void text_if_it_fits(Svg& svg, double x, double y, double width, std::string_view text, const TextStyle& style);

struct LegendEntry {
  std::string name;
  std::string_view fill;
};
/// Draws a legend from `x`, `y` on, in as many lines as it needs. Returns the base line of the last line.
double draw_legend(Svg& svg, double x, double y, std::span<const LegendEntry> entries);

/// "1,234,567".
std::string grouped(std::uint64_t number);
/// "99,999 B", "123 kB", "1.2 MB": decimal units.
std::string short_bytes(std::uint64_t bytes);
/// Returns a step of 1, 2 or 5 times a power of ten, such that `range` has at most `most` steps.
double step_of_axis(double range, double most);

/// Returns the sum of `count(item)` over `items`.
template <class Items, class Count>
std::uint64_t sum_of(const Items& items, const Count& count) {
  std::uint64_t sum = 0;
  for (const auto& item : items) sum += count(item);
  return sum;
}

/// A group of kinds of operations that are drawn alike.
struct DrawnPart {
  std::string_view name, fill;
};
const DrawnPart& stage_of(UpdatePart part);
/// What a stream does while it waits. Its fill is the hatch "held".
const DrawnPart& waiting_stage();

struct TimelineBox {
  double begin = 0, end = 0;
  std::string label, hint;  // the label is left out if it does not fit
  std::string_view fill;
  const DrawnPart* stage = nullptr;  // null: no operation
};
struct TimelineRow {
  std::string name;
  std::vector<TimelineBox> boxes;
};
struct TimelinePanel {
  std::string title, note;
  std::vector<TimelineRow> rows;  // those without boxes are not drawn
};
/// Returns a row for each stream, in the order in which they are drawn: "gather", "compute", ...
std::vector<TimelineRow> rows_of_streams();
/// Adds a box to the row `name`, which is added if it is missing.
void add_box(TimelinePanel& panel, std::string_view name, TimelineBox box);
/// Draws the panels one below the other, all on one scale from time 0 to the last end, and a legend of the stages that are
/// seen. Boxes below a fifth of a pixel are not drawn. With `letters`, the legend also has the letters with which the labels
/// begin: "backward (B, E)". The caller defines the hatch "held", if it is used.
Figure draw_timeline_panels(std::span<const TimelinePanel> panels, bool letters);

}  // namespace fsdp
