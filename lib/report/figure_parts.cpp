#include "report/figure_parts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace fsdp {

namespace {

/// In the order of UpdatePart up to `transfer`.
constexpr std::array<DrawnPart, 9> stages = {{{"all-gather", paint::cyan},
                                              {"forward", paint::light_pear},
                                              {"forward again", paint::yellow},
                                              {"backward", paint::pear},
                                              {"reduce", paint::orange},
                                              {"norm, optimizer", paint::mint},
                                              {"load, unload", paint::pink},
                                              {"waits", "url(#held)"},
                                              {"other work", paint::grey}}};

constexpr double rows_begin = 92, row_height = 24;  // of a timeline

}  // namespace

double width_of(std::string_view text, const TextStyle& style) { return text_width(text, style.size, style.bold); }

void fitted_text(Svg& svg, double x, double y, double width, std::string_view text, const TextStyle& style) {
  svg.text(x, y, fitted(text, style.bold ? width / 1.1 : width, style.size), style);
}

void text_if_it_fits(Svg& svg, double x, double y, double width, std::string_view text, const TextStyle& style) {
  if (!text.empty() && width_of(text, style) <= width) svg.text(x, y, text, style);
}

double draw_legend(Svg& svg, double x, double y, std::span<const LegendEntry> entries) {
  const double begin = x;
  for (const LegendEntry& entry : entries) {
    const double width = 18 + width_of(entry.name, small_text);
    if (x > begin && x + width > figure_width - figure_margin) x = begin, y += 20;
    svg.box(x, y - 10, 13, 13, entry.fill, box_edge);
    svg.text(x + 18, y + 1, entry.name, small_text);
    x += width + 16;
  }
  return y;
}

std::string grouped(std::uint64_t number) {
  std::string text = format("{}", number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string short_bytes(std::uint64_t bytes) {
  if (bytes < 100'000) return grouped(bytes) + " B";
  if (bytes < 1'000'000) return format("{:.0f} kB", static_cast<double>(bytes) / 1e3);
  double value = static_cast<double>(bytes) / 1e6;
  std::size_t unit = 0;
  constexpr std::string_view units = "MGTPE";
  for (; value >= 1e3 && unit + 1 < units.size(); ++unit) value /= 1e3;
  return format("{:.1f} {}B", value, units[unit]);
}

double step_of_axis(double range, double most) {
  const double power = std::pow(10, std::floor(std::log10(range / most)));
  for (const double factor : {1, 2, 5})
    if (range <= most * factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

const DrawnPart& stage_of(UpdatePart part) {
  return part <= UpdatePart::transfer ? stages[static_cast<std::size_t>(part)] : stages.back();
}

const DrawnPart& waiting_stage() { return stages[stages.size() - 2]; }

std::vector<TimelineRow> rows_of_streams() {
  std::vector<TimelineRow> rows;
  for (const char* stream : {"load", "gather", "compute", "reduce", "unload"}) rows.push_back({stream, {}});
  return rows;
}

void add_box(TimelinePanel& panel, std::string_view name, TimelineBox box) {
  auto row = std::find_if(panel.rows.begin(), panel.rows.end(), [&](const TimelineRow& one) { return one.name == name; });
  if (row == panel.rows.end()) row = panel.rows.insert(row, {std::string(name), {}});
  row->boxes.push_back(std::move(box));
}

Figure draw_timeline_panels(std::span<const TimelinePanel> panels, bool letters) {
  Svg svg(figure_width);
  double y = 8, last = 0;
  for (const TimelinePanel& panel : panels)
    for (const TimelineRow& row : panel.rows)
      for (const TimelineBox& box : row.boxes) last = std::max(last, box.end);
  const double right = figure_width - figure_margin, scale = last > 0 ? (right - rows_begin) / last : 0;
  std::map<const DrawnPart*, std::string> seen;  // the first letters of the labels
  for (const TimelinePanel& panel : panels) {
    fitted_text(svg, figure_margin, y + 16, right - figure_margin - width_of(panel.note, quiet_end) - 20, panel.title,
                bold_text);
    if (!panel.note.empty()) svg.text(right, y + 16, panel.note, quiet_end);
    y += row_height;
    for (const TimelineRow& row : panel.rows) {
      if (row.boxes.empty()) continue;
      fitted_text(svg, rows_begin - 8, y + 16, rows_begin - 16, row.name, quiet_end);
      svg.line({rows_begin, y + row_height - 1}, {right, y + row_height - 1}, {.colour = paint::grid});
      for (const TimelineBox& box : row.boxes) {
        const double width = (box.end - box.begin) * scale;
        if (width < 0.2) continue;
        if (box.stage) seen[box.stage] += box.label.substr(0, 1);
        svg.box(rows_begin + box.begin * scale, y + 2, width, row_height - 5, box.fill,
                {.colour = paint::quiet, .width = width < 3 ? 0.2 : 0.6}, box.hint);
        text_if_it_fits(svg, rows_begin + (box.begin + box.end) / 2 * scale, y + 15, width - 1, box.label,
                        {.size = small_size, .anchor = Anchor::middle, .fill = paint::ink});
      }
      y += row_height;
    }
    y += 10;
  }
  std::vector<LegendEntry> legend;
  for (const DrawnPart& stage : stages) {
    if (!seen.contains(&stage)) continue;
    const std::set<char> first(seen[&stage].begin(), seen[&stage].end());
    legend.push_back({std::string(stage.name), stage.fill});
    if (letters && !first.empty()) legend.back().name += format(" ({})", fmt::join(first, ", "));
  }
  y = draw_legend(svg, figure_margin, y + 10, legend);
  return {std::move(svg), y + 16};
}

}  // namespace fsdp
