#include "report/plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/format.hpp"

namespace fsdp {

namespace {

/// The colours of Okabe and Ito ("Color Universal Design", 2008), with brown and grey for yellow and black, which are hard to
/// see on a light or a dark ground. The style sheet of a page has the same ones, and others for a dark ground.
constexpr std::array<std::string_view, 8> colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#8c564b", "#6e6e6e"};

struct Paints {
  std::string_view soft, quiet, ground, ink;
};
constexpr Paints page_paints = {"var(--soft)", "var(--quiet)", "var(--ground)", "currentColor"},
                 file_paints = {"#ddd", "#5c5c5c", "#fff", "#222"};

struct ValueRange {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void see(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  bool empty() const { return !(low <= high); }
  /// Makes room around values that are all the same, or so nearly that ticks between them would be the same number.
  void widen(double margin_of_zero) {
    const double size = std::max(std::abs(low), std::abs(high));
    if (high - low > 1e-9 * size) return;
    const double margin = size == 0 ? margin_of_zero : 0.1 * size;
    low -= margin, high += margin;
  }
};

/// The frame of a plot, and the way from values to pixels.
struct Frame {
  double left, top, width, height;
  ValueRange x, y;
  bool logarithmic, logarithmic_x;

  double at_x(double value) const {
    const auto scaled = [&](double v) { return logarithmic_x ? std::log2(v) : v; };
    return left + width * (scaled(value) - scaled(x.low)) / (scaled(x.high) - scaled(x.low));
  }
  double at_y(double value) const {
    const auto scaled = [&](double v) { return logarithmic ? std::log10(v) : v; };
    return top + height * (1 - (scaled(value) - scaled(y.low)) / (scaled(y.high) - scaled(y.low)));
  }
};

/// The indices of the values that are drawn, for each line: the smallest and the largest value of each column of `column`
/// pixels, in their order. If there are no more values than pixels, all are drawn, and a gap ends a line. Else an empty column
/// does.
std::vector<std::vector<std::size_t>> lines_of(const Curve& curve, const Frame& frame, double column) {
  std::vector<std::vector<std::size_t>> lines(1);
  const std::size_t n = curve.x.size();
  const bool whole = static_cast<double>(n) <= 2 * frame.width / column;
  bool gap = false;  // since the last value
  double place = 0;  // the column of the last value
  for (std::size_t i = 0; i < n;) {
    if (!can_be_drawn(curve.y[i]) || !can_be_drawn(curve.x[i])) {
      gap = true;
      ++i;
      continue;
    }
    const auto column_of = [&](std::size_t k) { return std::floor(frame.at_x(curve.x[k]) / column); };
    std::size_t low = i, high = i, last = i;
    const double here = column_of(i);
    if (!whole)
      for (std::size_t k = i + 1; k < n && can_be_drawn(curve.x[k]) && column_of(k) == here; ++k) {
        last = k;
        if (!can_be_drawn(curve.y[k])) continue;
        if (curve.y[k] < curve.y[low]) low = k;
        if (curve.y[k] > curve.y[high]) high = k;
      }
    if (gap && !lines.back().empty() && (whole || here > place + 1)) lines.emplace_back();
    gap = false, place = here;
    lines.back().push_back(std::min(low, high));
    if (low != high) lines.back().push_back(std::max(low, high));
    i = last + 1;
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

void draw_curve(Svg& svg, const Curve& curve, const Frame& frame, std::string_view ground) {
  const bool is_points = curve.look == Curve::Look::points, is_faint = curve.look == Curve::Look::faint;
  const std::string name = format("class=\"curve\" data-name=\"{}\"", escaped(curve.name));
  const double radius = curve.x.size() > 40 ? 2 : 3;
  for (const std::vector<std::size_t>& line : lines_of(curve, frame, is_points ? 4 : 2)) {
    std::vector<Point> points;
    for (const std::size_t i : line) points.push_back({frame.at_x(curve.x[i]), frame.at_y(curve.y[i])});
    if (line.size() > 1 && !is_points) {
      svg.path(points,
               {.colour = curve.colour, .width = is_faint ? 1 : 1.6, .dashes = curve.look == Curve::Look::dashes ? "5 3" : ""},
               "none", {}, is_faint ? name + " opacity=\"0.6\"" : name);
      continue;
    }
    std::string coordinates;
    for (const Point& point : points)
      coordinates += format("{}{:.1f},{:.1f}", coordinates.empty() ? "" : " ", point.x, point.y);
    svg.raw(format("<g {} data-paint=\"{}\" data-points=\"{}\">\n", name, curve.colour, coordinates));
    for (std::size_t k = 0; k < points.size(); ++k)
      svg.circle(points[k], is_points ? radius : 2, curve.colour, is_points ? Stroke{.colour = ground, .width = 0.8} : Stroke{},
                 line[k] < curve.hints.size() ? curve.hints[line[k]] : format("{}: {:.6g}", curve.name, curve.y[line[k]]));
    svg.raw("</g>\n");
  }
}

std::vector<double> multiples(double step, double low, double high) {
  std::vector<double> out;
  const double first = std::ceil(low / step - 1e-9);
  for (int k = 0; k < 100 && (first + k) * step <= high + 1e-9 * step; ++k)
    out.push_back(first + k == 0 ? 0 : (first + k) * step);
  return out;
}

/// At most `wanted` powers of two from `low` to `high`, with equal factors between them.
std::vector<double> powers_of_two(double low, double high, int wanted) {
  const double first = std::ceil(std::log2(low) - 1e-9), last = std::floor(std::log2(high) + 1e-9);
  std::vector<double> out;
  for (double power = first; power <= last; power += std::max(1.0, std::ceil((last - first + 1) / wanted)))
    out.push_back(std::exp2(power));
  return out;
}

/// The largest power of ten at most `x`.
double decade(double x) { return std::pow(10, std::floor(std::log10(x))); }

}  // namespace

bool can_be_drawn(double x) { return std::abs(x) <= 1e100; }

std::string curve_colour(std::size_t i, PlotPlace place) {
  return place == PlotPlace::page ? format("var(--c{})", i % colours.size()) : std::string(colours[i % colours.size()]);
}
bool uses_dashes(std::size_t i) { return i / colours.size() % 2 == 1; }

std::vector<double> ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1), unit = decade(rough);
  double step = unit;
  for (const double candidate : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    step = candidate * unit;
    if (step >= 0.999 * rough) break;
  }
  return multiples(step, low, high);
}

std::string tick_text(double value, double step) {
  const double size = std::max(std::abs(value), std::abs(step));
  if (value == 0) return "0";
  if (size >= 1e15 || std::abs(value) < 1e-4) return format("{:.3g}", value);
  constexpr std::array<std::pair<double, std::string_view>, 4> units = {{{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " k"}}};
  if (std::abs(value) >= 1e4)
    for (const auto& [unit, name] : units)
      if (std::abs(value) >= unit) {
        const int digits = std::clamp(static_cast<int>(std::ceil(2 - std::log10(step / unit) - 1e-9)), 0, 4);
        std::string text = format("{:.{}f}", value / unit, digits);
        if (digits > 0) text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
        return text + std::string(name);
      }
  return format("{:.6g}", std::round(value / step * 1e6) / 1e6 * step);
}

std::optional<Figure> draw(const Plot& plot, double width, double height, PlotPlace place) {
  const auto& [soft, quiet, ground, ink] = place == PlotPlace::page ? page_paints : file_paints;
  Frame frame{.left = 0,
              .top = 0,
              .width = 0,
              .height = 0,
              .x = {},
              .y = {},
              .logarithmic = plot.logarithmic,
              .logarithmic_x = plot.logarithmic_x};
  for (const Curve& curve : plot.curves)
    for (std::size_t i = 0; i < curve.x.size(); ++i)
      if (can_be_drawn(curve.y[i]) && can_be_drawn(curve.x[i])) frame.x.see(curve.x[i]), frame.y.see(curve.y[i]);
  if (frame.x.empty() || frame.y.empty()) return std::nullopt;
  if (plot.limit && can_be_drawn(*plot.limit) && *plot.limit < 3 * frame.y.high) frame.y.see(*plot.limit);
  frame.logarithmic = frame.logarithmic && frame.y.low > 1e-100;
  if (plot.from_zero) frame.y.see(0), frame.logarithmic = false;
  frame.logarithmic_x = frame.logarithmic_x && frame.x.low > 1e-100;
  frame.x.widen(0.5);
  frame.y.widen(1);

  // The frame begins right of the labels of the y axis, and below the title and the legend.
  constexpr double size = 11, small = 10;
  std::vector<std::pair<double, std::string>> rows;
  const auto add_rows = [&](const std::vector<double>& values) {
    const double step = values.size() > 1 ? values[1] - values[0] : std::abs(values.empty() ? 1 : values[0]);
    for (const double v : values) rows.emplace_back(v, tick_text(v, step));
  };
  if (frame.logarithmic && frame.y.high / frame.y.low > 20) {
    double v = decade(frame.y.low);
    for (int k = 0; k < 300 && v <= frame.y.high; ++k, v *= 10)
      if (v >= frame.y.low) rows.emplace_back(v, tick_text(v, v));
  }
  if (rows.size() < 2) {
    rows.clear();
    if (!frame.logarithmic) {  // the axis ends at a tick
      const std::vector<double> inner = ticks(frame.y.low, frame.y.high, 5);
      if (inner.size() > 1) {
        const double step = inner[1] - inner[0];
        frame.y.low = std::min(frame.y.low, step * std::floor(frame.y.low / step + 1e-9));
        frame.y.high = std::max(frame.y.high, step * std::ceil(frame.y.high / step - 1e-9));
        add_rows(multiples(step, frame.y.low, frame.y.high));
      }
    }
    if (rows.empty()) add_rows(ticks(frame.y.low, frame.y.high, 5));
  }
  double widest = 20;
  for (const auto& [value, text] : rows) widest = std::max(widest, text_width(text, size));
  frame.left = widest + (place == PlotPlace::page ? 12 : 22);
  frame.width = width - frame.left - 18;

  Svg svg(width);
  double y = 18;
  const double margin = place == PlotPlace::page ? 0 : 10;  // a page has its own
  const std::string title = fitted(plot.title, width - margin, 13, true);
  svg.text(margin, y, title, {.bold = true});
  const std::string y_name = plot.y_name + (frame.logarithmic ? plot.y_name.empty() ? "logarithmic" : ", logarithmic" : "");
  if (const double end = margin + text_width(title, 13, true) + 8; !y_name.empty() && end + 60 < width)
    svg.text(end, y, fitted(y_name, width - end, size), {.size = size, .fill = quiet});
  // The legend names each curve once; it is as many lines as it needs.
  const bool shows_limit = plot.limit && *plot.limit >= frame.y.low && *plot.limit <= frame.y.high;
  const Stroke limit_stroke = {.colour = ink, .width = 1, .dashes = "6 4"};
  const bool names = plot.curves.size() > 1 || (plot.curves.size() == 1 && plot.curves[0].name != plot.title);
  double x = frame.left;
  y += 18;
  std::vector<std::string> named;
  for (const Curve& curve : plot.curves) {
    const bool has_value = std::any_of(curve.y.begin(), curve.y.end(), can_be_drawn);
    if (!names || curve.name.empty() || !has_value ||
        std::find(named.begin(), named.end(), curve.name + curve.colour) != named.end())
      continue;
    named.push_back(curve.name + curve.colour);
    const std::string text = fitted(curve.name, width - frame.left - 40, size);
    const double wide = 20 + text_width(text, size) + 14;
    if (x + wide > width && x > frame.left) x = frame.left, y += 16;
    if (curve.look == Curve::Look::points)
      svg.circle({x + 7, y - 4}, 3, curve.colour);
    else
      svg.line({x, y - 4}, {x + 15, y - 4},
               {.colour = curve.colour, .width = 2.5, .dashes = curve.look == Curve::Look::dashes ? "5 3" : ""});
    svg.text(x + 20, y, text, {.size = size, .fill = quiet});
    x += wide;
  }
  if (shows_limit) {
    const double wide = 20 + text_width(plot.limit_name, size);
    if (x + wide > width && x > frame.left) x = frame.left, y += 16;
    svg.line({x, y - 4}, {x + 15, y - 4}, limit_stroke);
    svg.text(x + 20, y, plot.limit_name, {.size = size, .fill = quiet});
    named.push_back(plot.limit_name);
  }
  frame.top = y + (named.empty() ? -8 : 10);
  frame.height = height - frame.top - 38;

  for (const auto& [value, text] : rows) {
    const double at = frame.at_y(value);
    if (at < frame.top - 0.5 || at > frame.top + frame.height + 0.5) continue;
    svg.line({frame.left, at}, {frame.left + frame.width, at}, {.colour = soft});
    svg.text(frame.left - 6, at + 4, text, {.size = size, .anchor = Anchor::end, .fill = quiet});
  }
  // Ticks of the x axis, as many as fit next to each other.
  for (int wanted = 8; wanted >= 1; --wanted) {
    const std::vector<double> powers =
        frame.logarithmic_x ? powers_of_two(frame.x.low, frame.x.high, wanted) : std::vector<double>();
    const std::vector<double> columns = powers.empty() ? ticks(frame.x.low, frame.x.high, wanted) : powers;
    const double step = columns.size() > 1 && powers.empty() ? columns[1] - columns[0] : 1;
    double end = -1e9;
    bool fits = true;
    for (const double v : columns) {
      const double half = text_width(tick_text(v, step), size) / 2, at = frame.at_x(v);
      fits = fits && (at - half > end + 8 || at + half > width);
      end = at + half;
    }
    if (!fits && wanted > 1) continue;
    end = -1e9;
    for (const double v : columns) {
      const double at = frame.at_x(v), half = text_width(tick_text(v, step), size) / 2;
      svg.line({at, frame.top + frame.height}, {at, frame.top + frame.height + 4}, {.colour = quiet});
      if (at - half <= end + 4 || at + half > width) continue;
      svg.text(at, frame.top + frame.height + 16, tick_text(v, step), {.size = size, .anchor = Anchor::middle, .fill = quiet});
      end = at + half;
    }
    break;
  }
  svg.text(frame.left + frame.width, height - 6, plot.x_name, {.size = size, .anchor = Anchor::end, .fill = quiet});
  svg.line({frame.left, frame.top + frame.height}, {frame.left + frame.width, frame.top + frame.height}, {.colour = quiet});

  std::vector<PlotMark> marks = plot.marks;
  std::stable_sort(marks.begin(), marks.end(), [](const PlotMark& a, const PlotMark& b) { return a.x < b.x; });
  double named_until = 0, marked = -2;
  std::vector<std::pair<double, std::string>> names_of_marks;  // they are written over the curves
  for (const PlotMark& mark : marks) {
    if (!(mark.x >= frame.x.low && mark.x <= frame.x.high)) continue;
    const double at = frame.at_x(mark.x);
    if (at < marked + 2) continue;  // a thousand starts are a grey area whether all are drawn or not
    marked = at;
    svg.line({at, frame.top}, {at, frame.top + frame.height}, {.colour = quiet, .dashes = "2 3"});
    svg.raw(
        format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"{:.1f}\" fill=\"transparent\"><title>{}</title></rect>\n",
               at - 3, frame.top, frame.height, escaped(mark.hint)));
    const double wide = text_width(mark.name, small);
    const double from =
        at + 3 + wide > frame.left + frame.width ? at - 3 - wide : at + 3;  // at the right edge: before the line
    if (from < std::max(named_until, frame.left)) continue;
    names_of_marks.emplace_back(from, mark.name);
    named_until = from + wide + 4;
  }
  for (const Curve& curve : plot.curves) draw_curve(svg, curve, frame, ground);
  for (const auto& [at, name] : names_of_marks)
    svg.text(at, frame.top + 9, name, {.size = small, .fill = quiet, .halo = ground});
  if (shows_limit) {
    const double at = frame.at_y(*plot.limit);
    svg.line({frame.left, at}, {frame.left + frame.width, at}, limit_stroke);
  }
  std::string attributes = format(
      "class=\"plot\" data-x0=\"{}\" data-x1=\"{}\" data-y0=\"{}\" data-y1=\"{}\" data-log=\"{}\" data-log-x=\"{}\" "
      "data-frame=\"{:.1f} {:.1f} "
      "{:.1f} "
      "{:.1f}\" data-x=\"{}\"",
      frame.x.low, frame.x.high, frame.y.low, frame.y.high, frame.logarithmic ? 1 : 0, frame.logarithmic_x ? 1 : 0, frame.left,
      frame.top, frame.width, frame.height, escaped(plot.x_name));
  return Figure{std::move(svg), height, std::move(attributes)};
}

}  // namespace fsdp
