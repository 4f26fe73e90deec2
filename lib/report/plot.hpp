// Curves over a common axis, as a part of a page or as a file. A curve of any length is drawn by its smallest and largest value
// in each two pixels, so no peak is lost and 100,000 values take as much room as 1,000.
//
// The element of a plot has the attributes data-x0, data-x1, data-y0, data-y1 (values at the edges of the frame), data-log
// ("1" if y is logarithmic), data-log-x ("1" if x is) and data-frame ("left top width height" in pixels), by which values can
// be read back from coordinates. Each curve is one or more elements of class "curve" with data-name; those of points have their
// coordinates as data-points.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "report/svg.hpp"

namespace fsdp {

struct Curve {
  std::string name;
  std::vector<double> x, y;  // of the same length; x ascends; a y that is not finite, or is beyond 1e100, is a gap
  std::string colour;        // any paint
  enum class Look { line, faint, points, dashes } look = Look::line;
  std::vector<std::string> hints = {};  // of points, for the pointer; empty: their values
};
/// A vertical line, such as a restart. `name` is written next to it if there is room, `hint` is for the pointer.
struct PlotMark {
  double x = 0;
  std::string name, hint;
};
struct Plot {
  std::string title, x_name, y_name;  // names with units: "tokens/s"
  std::vector<Curve> curves;
  std::vector<PlotMark> marks = {};
  std::optional<double> limit = {};  // a horizontal dashed line, such as the norm at which gradients are clipped
  std::string limit_name = {};
  bool from_zero = false;      // the y axis begins at 0
  bool logarithmic = false;    // the y axis is logarithmic, if all values are positive
  bool logarithmic_x = false;  // the x axis, too; its ticks are powers of two
};

/// Where a plot is drawn: on a page, which defines the colours as variables of its style sheet, or in a file of its own.
enum class PlotPlace { page, file };
/// The paint of curve number i: eight colours that colour-blind people can tell apart, then the same ones again, for which
/// uses_dashes(i) is true.
std::string curve_colour(std::size_t i, PlotPlace place = PlotPlace::page);
bool uses_dashes(std::size_t i);

/// The drawing of a plot, `width` x `height` pixels, with the attributes above. A plot without a finite value is empty:
/// std::nullopt.
std::optional<Figure> draw(const Plot& plot, double width, double height, PlotPlace place = PlotPlace::page);

/// False for NaN and for numbers beyond 1e100, which an axis cannot hold: the difference of two could be infinite.
bool can_be_drawn(double x);
/// Numbers at even distances from `low` to `high`, which cover the range with about `wanted` steps: 0, 2.5, 5, 7.5.
std::vector<double> ticks(double low, double high, int wanted);
/// "1500", "2.5", "1.2 M", "3e-05".
std::string tick_text(double value, double step);

}  // namespace fsdp
