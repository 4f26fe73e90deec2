#include "fsdp-report/tuning_figure.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.hpp"
#include "base/number_in.hpp"
#include "files/input_file.hpp"
#include "report/plot.hpp"

namespace fsdp {

namespace {

/// Reads a positive number; returns false if `text` is none.
template <class Number>
bool is_number(const std::string& text, Number& value) {
  value = number_in<Number>(text).value_or(0);
  return value > 0 && value < 1e18;
}

struct Area {
  double left, top, right, bottom;
  bool overlaps(const Area& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

constexpr double point_radius = 4.5;

}  // namespace

std::vector<TuningPoint> read_tuning(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  bool table = false;
  std::vector<TuningPoint> points;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    table = table || (line.starts_with("# strategy ") && line.find("batch-size") != std::string::npos);
    std::istringstream words(line);
    std::string recomputes, batch_size, speed, ms, memory;
    TuningPoint point;
    if (words >> point.strategy >> recomputes >> batch_size >> speed >> ms >> memory &&
        (recomputes == "yes" || recomputes == "no") && is_number(batch_size, point.batch_size) &&
        is_number(speed, point.tokens_per_second) && is_number(memory, point.memory_mib)) {
      point.recomputes = recomputes == "yes";
      points.push_back(point);
    }
  }
  if (!table)
    throw UserError(
        format("'{}' has no table of settings (its columns are strategy, recompute, batch-size, ...); give what "
               "fsdp-bench tuning has printed as text",
               path.string()));
  if (points.empty())
    throw UserError(format(
        "'{}' has no setting that was measured (none fits the memory); run fsdp-bench tuning with more memory", path.string()));
  return points;
}

Figure draw_tuning(const std::vector<TuningPoint>& points) {
  expect(!points.empty(), "read_tuning() returns points");
  std::vector<std::string> strategies;
  double least_x = points.front().memory_mib, most_x = least_x, most_y = 0;
  for (const TuningPoint& point : points) {
    if (std::find(strategies.begin(), strategies.end(), point.strategy) == strategies.end())
      strategies.push_back(point.strategy);
    least_x = std::min(least_x, point.memory_mib), most_x = std::max(most_x, point.memory_mib);
    most_y = std::max(most_y, point.tokens_per_second);
  }
  // The axes are extended so that points at the edges and their labels fit.
  const double margin_x = most_x > least_x ? 0.06 * (most_x - least_x) : 0.05 * most_x;
  least_x = std::max(0.0, least_x - margin_x), most_x += margin_x, most_y *= 1.08;
  double legend_width = 0;
  for (const std::string& strategy : strategies)
    legend_width = std::max(legend_width, std::min(220.0, width_of(strategy + ", recomputing", small_text)));
  const Area plot{78, 16, figure_width - figure_margin - legend_width - 36, 376};
  const auto at = [&](double x, double y) {
    return Point{plot.left + (plot.right - plot.left) * (x - least_x) / (most_x - least_x),
                 plot.bottom - (plot.bottom - plot.top) * y / most_y};
  };

  Svg svg(figure_width);
  const double step_x = step_of_axis(most_x - least_x, 8), step_y = step_of_axis(most_y, 8);
  for (double i = std::ceil(least_x / step_x); i * step_x <= most_x; ++i) {
    const Point tick = at(i * step_x, 0);
    svg.line({tick.x, plot.top}, {tick.x, plot.bottom + 4}, {.colour = paint::grid});
    svg.text(tick.x, plot.bottom + 18, format("{:.10g}", i * step_x), small_middle);
  }
  for (double i = 0; i * step_y <= most_y; ++i) {
    const Point tick = at(least_x, i * step_y);
    svg.line({plot.left - 4, tick.y}, {plot.right, tick.y}, {.colour = paint::grid});
    svg.text(plot.left - 8, tick.y + 4, format("{:.10g}", i * step_y), small_end);
  }
  svg.box(plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top, "none", box_edge);
  svg.text((plot.left + plot.right) / 2, plot.bottom + 38, "memory of a rank, MiB (numbers: batch size)", small_middle);
  svg.text(20, (plot.top + plot.bottom) / 2, "tokens/s", {.size = small_size, .anchor = Anchor::middle, .rotate = -90});

  std::vector<Area> taken;  // by points and labels
  for (const TuningPoint& point : points) {
    const Point centre = at(point.memory_mib, point.tokens_per_second);
    taken.push_back({centre.x - point_radius, centre.y - point_radius, centre.x + point_radius, centre.y + point_radius});
  }
  double legend_y = plot.top + 12;
  for (std::size_t s = 0; s < strategies.size(); ++s)
    for (const bool recomputes : {false, true}) {
      const std::string colour = curve_colour(s, PlotPlace::file), fill = recomputes ? "#fff" : colour;
      std::vector<const TuningPoint*> line;
      std::vector<Point> centres;
      for (const TuningPoint& point : points)
        if (point.strategy == strategies[s] && point.recomputes == recomputes) {
          line.push_back(&point);
          centres.push_back(at(point.memory_mib, point.tokens_per_second));
        }
      if (line.empty()) continue;
      const std::string name = strategies[s] + (recomputes ? ", recomputing" : "");
      const Stroke stroke = {.colour = colour, .width = 1.6};
      svg.path(centres, {.colour = colour});
      for (std::size_t i = 0; i < line.size(); ++i)
        svg.circle(centres[i], point_radius, fill, stroke,
                   format("{}, batch size {}: {:.0f} tokens/s, {:.0f} MiB", name, line[i]->batch_size,
                          line[i]->tokens_per_second, line[i]->memory_mib));
      svg.circle({plot.right + 22, legend_y - 4}, point_radius, fill, stroke);
      fitted_text(svg, plot.right + 34, legend_y, figure_width - 4 - plot.right - 34, name, small_text);
      legend_y += 20;
    }
  for (const TuningPoint& point : points) {
    const Point centre = at(point.memory_mib, point.tokens_per_second);
    const std::string label = format("{}", point.batch_size);
    const double half = width_of(label, small_text) / 2 + 1, height = 11;
    // The places around the point, the best ones first.
    for (const auto& [x, y] : {Point{0, -12}, Point{half + 7, 0}, Point{-half - 7, 0}, Point{0, 12}, Point{half + 5, -10},
                               Point{-half - 5, -10}, Point{half + 5, 10}, Point{-half - 5, 10}}) {
      const Area area{centre.x + x - half, centre.y + y - height / 2, centre.x + x + half, centre.y + y + height / 2};
      if (area.left < plot.left || area.right > plot.right || area.top < plot.top || area.bottom > plot.bottom ||
          std::any_of(taken.begin(), taken.end(), [&](const Area& other) { return area.overlaps(other); }))
        continue;
      svg.text(centre.x + x, centre.y + y + 4, label, {.size = small_size, .anchor = Anchor::middle, .halo = "#fff"});
      taken.push_back(area);
      break;
    }
  }
  return {svg, std::max(plot.bottom + 52, legend_y)};
}

}  // namespace fsdp
