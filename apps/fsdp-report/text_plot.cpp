#include "fsdp-report/text_plot.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/quantile.hpp"
#include "report/plot.hpp"

namespace fsdp {

namespace {

/// The bit of each dot of a Braille pattern, by row and column (Unicode's block U+2800).
constexpr std::uint8_t dot_bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

std::string braille(std::uint8_t bits) {
  return bits == 0 ? " "
                   : std::string{static_cast<char>(0xE2), static_cast<char>(0xA0 | bits >> 6),
                                 static_cast<char>(0x80 | (bits & 0x3F))};
}

}  // namespace

std::string text_plot(const std::string& title, const std::vector<double>& x, const std::vector<double>& y, std::size_t columns,
                      std::size_t rows, bool unicode, bool from_zero) {
  columns = std::max<std::size_t>(columns, 30);
  double low = INFINITY, high = -INFINITY, begin = INFINITY, end = -INFINITY;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!can_be_drawn(x[i]) || !can_be_drawn(y[i])) continue;
    low = std::min(low, y[i]), high = std::max(high, y[i]);
    begin = std::min(begin, x[i]), end = std::max(end, x[i]);
  }
  if (!(low <= high)) return {};
  if (from_zero) low = std::min(low, 0.0);
  if (low == high) low -= low == 0 ? 1 : 0.1 * std::abs(low), high += high == 0 ? 1 : 0.1 * std::abs(high);
  const std::string top = tick_text(high, (high - low) / 100), bottom = low == 0 ? "0" : tick_text(low, (high - low) / 100);
  const std::size_t margin = std::max(top.size(), bottom.size()) + 1, wide = columns - margin;
  const std::size_t across = unicode ? 2 : 1, down = unicode ? 4 : 1;

  // Each column of dots shows its smallest and largest value, and all dots from there to the next column's.
  const std::size_t dots = wide * across, height = rows * down;
  std::vector<double> least(dots, INFINITY), most(dots, -INFINITY);
  std::vector<std::pair<double, double>> ends(dots);  // the first and the last value of each column
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!can_be_drawn(x[i]) || !can_be_drawn(y[i])) continue;
    const double share = end > begin ? (x[i] - begin) / (end - begin) : 0;
    const auto column = std::min(dots - 1, static_cast<std::size_t>(share * static_cast<double>(dots)));
    if (least[column] > most[column]) ends[column].first = y[i];
    least[column] = std::min(least[column], y[i]), most[column] = std::max(most[column], y[i]);
    ends[column].second = y[i];
  }
  const auto row_of = [&](double value) {
    const double share = (high - value) / (high - low);
    return std::min(height - 1, static_cast<std::size_t>(share * static_cast<double>(height)));
  };
  std::vector<std::uint8_t> cells(rows * wide, 0);
  const auto fill = [&](std::size_t column, std::size_t from, std::size_t to) {
    for (std::size_t row = std::min(from, to); row <= std::max(from, to); ++row)
      cells[row / down * wide + column / across] |= dot_bits[row % down][column % across];
  };
  std::optional<std::size_t> before;  // the one before with a value
  double value = 0;                   // at the end of that column
  for (std::size_t column = 0; column < dots; ++column) {
    if (least[column] > most[column]) continue;
    fill(column, row_of(most[column]), row_of(least[column]));
    if (before) {
      const double to = ends[column].first, gap = static_cast<double>(column - *before);
      for (std::size_t c = *before; c < column; ++c) {
        const auto at = [&](double share) { return row_of(value + (to - value) * share); };
        fill(c, at(static_cast<double>(c - *before) / gap), at(static_cast<double>(c + 1 - *before) / gap));
      }
    }
    before = column, value = ends[column].second;
  }

  std::string out = title + "\n";
  for (std::size_t row = 0; row < rows; ++row) {
    const std::string label = row == 0 ? top : row + 1 == rows ? bottom : "";
    std::string line = format("{:>{}} ", label, margin - 1);
    for (std::size_t column = 0; column < wide; ++column) {
      const std::uint8_t bits = cells[row * wide + column];
      line += unicode ? braille(bits) : bits != 0 ? "*" : " ";
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const std::string first = tick_text(begin, std::max(end - begin, 1.0) / 100),
                    last = tick_text(end, std::max(end - begin, 1.0) / 100);
  const std::size_t gap = wide > first.size() + last.size() ? wide - first.size() - last.size() : 1;
  return out + std::string(margin, ' ') + first + std::string(gap, ' ') + last + "\n";
}

std::string text_summary(const Run& run) {
  const Updates& u = run.updates;
  const RunStart& newest = run.starts.back();
  std::string out = format("{}: ", one_line(run.name));
  out += u.size() == 0 ? "no update yet" : format("update {:.0f}", u.step.back());
  if (u.size() > 0 && std::isfinite(u.loss.back())) out += format(", loss {:.4f}", u.loss.back());
  if (u.size() > 0 && std::isfinite(u.accuracy.back()))
    out += format(", token accuracy {:.3f}, entropy {:.3f}", u.accuracy.back(), u.entropy.back());
  if (!run.valid_loss.empty() && std::isfinite(run.valid_loss.back()))
    out += format(", validation {:.4f} (update {:.0f})", run.valid_loss.back(), run.valid_step.back());
  if (const double speed = quantile(u.positions_per_second, 0.5); std::isfinite(speed))
    out += format(", {} tok/s (median)", format_count(speed));
  out += format("; {}: {}", plural(run.starts.size(), "start"), one_line(newest.why));
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (!newest.has_end() && now > run.last_time) out += format(" (last line {} ago)", format_duration(now - run.last_time));
  return out + "\n";
}

std::string text_curves(const Run& run, bool is_named, std::size_t columns, bool unicode) {
  const Updates& u = run.updates;
  const std::string name = is_named ? one_line(run.name) + ": " : "";
  return text_plot(name + "loss over updates", u.step, u.loss, columns, 12, unicode) +
         text_plot(name + "tokens per second", u.step, u.positions_per_second, columns, 6, unicode, true);
}

}  // namespace fsdp
