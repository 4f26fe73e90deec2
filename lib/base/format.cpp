#include "base/format.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/clean_text.hpp"
#include "base/error.hpp"

namespace fsdp {

namespace {

std::string three_digits(double value) { return format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0); }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

/// Splits "12.5GiB" into 12.5 and "gib"; throws unless the number is finite and at least 0.
std::pair<double, std::string> number_and_unit(std::string_view given, std::string_view kind, std::string_view example) {
  const std::string text = without_separators(given);
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || !std::isfinite(value) || value < 0)
    throw UserError(
        format("'{}' is not a {} (it must start with a number, 0 or more); write for example {}", text, kind, example));
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return {value, lower(unit)};
}

}  // namespace

std::string format_bytes(double bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t i = 0;
  while (bytes >= 1023.5 && i + 1 < units.size()) bytes /= 1024, ++i;
  return i == 0 ? format("{:.0f} B", bytes) : format("{} {}", three_digits(bytes), units[i]);
}

std::string format_count(double count) {
  constexpr std::array units = {"", " k", " M", " B", " T"};
  std::size_t i = 0;
  while (count >= 999.5 && i + 1 < units.size()) count /= 1000, ++i;
  return i == 0 ? format("{:.0f}", count) : three_digits(count) + units[i];
}

std::string format_duration(double seconds) {
  if (seconds < 0.9995) return format("{:.0f} ms", seconds * 1e3);
  if (seconds < 99.95) return format("{:.1f} s", seconds);
  const long whole = std::lround(seconds);
  if (whole < 3600) return format("{}:{:02} min", whole / 60, whole % 60);
  return format("{}:{:02}:{:02} h", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string excerpt(std::string_view text, std::size_t most) {
  if (text.size() <= most) return one_line(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;  // do not cut within a character
  return one_line(text.substr(0, most)) + "...";
}

std::string printable(std::string_view message) {
  constexpr std::size_t most = 8000, kept_end = 1000;  // the end of a message tells what to do
  const std::string all = one_line(message);
  if (all.size() <= most) return all;
  return format("{} ... ({} characters are left out) ... {}", all.substr(0, most - kept_end), all.size() - most,
                all.substr(all.size() - kept_end));
}

std::string without_separators(std::string_view number) {
  const auto digit = [&](std::size_t i) { return i < number.size() && number[i] >= '0' && number[i] <= '9'; };
  std::string out;
  for (std::size_t i = 0; i < number.size(); ++i) {
    const bool separates = number[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1);
    if (!separates) out += number[i];
  }
  return out;
}

std::size_t parse_size(std::string_view text) {
  auto [value, unit] = number_and_unit(text, "size", "1024, 64M or 2GiB");
  if (!unit.empty() && unit.back() == 'b') unit.pop_back();
  static constexpr std::string_view prefixes = "kmgtp";
  double factor = 1;
  if (!unit.empty()) {
    const auto power = prefixes.find(unit.front());
    const bool binary = unit.size() == 2 && unit.back() == 'i';
    if (power == std::string_view::npos || (unit.size() > 1 && !binary))
      throw UserError(format("'{}' is not a size (unknown unit); use k, M, G, T or KiB, MiB, GiB, TiB", text));
    factor = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  const double size = value * factor;
  if (size > 9e18 || (unit.empty() && size != std::floor(size)))
    throw UserError(
        format("'{}' is not a size (it must be a whole number below 9e18); write for example 1024, 64M or 2GiB", text));
  return static_cast<std::size_t>(std::round(size));
}

double parse_duration(std::string_view text) {
  const auto [value, unit] = number_and_unit(text, "duration", "90s, 30min or 2h");
  static constexpr std::pair<std::string_view, double> units[] = {{"", 1},   {"s", 1},    {"sec", 1},  {"ms", 1e-3},
                                                                  {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
  for (const auto& [name, factor] : units)
    if (unit == name) return value * factor;
  throw UserError(format("'{}' is not a duration (unknown unit '{}'); use s, min, h or d", text, unit));
}

std::string list_of(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  if (names.size() == 1) return names[0];
  const std::size_t shown = std::min<std::size_t>(names.size() <= 4 ? names.size() - 1 : 3, names.size());
  std::string list = names[0];
  for (std::size_t i = 1; i < shown; ++i) list += ", " + names[i];
  return shown + 1 == names.size() ? list + " and " + names.back() : format("{} and {} more", list, names.size() - shown);
}

std::string lay_out(const std::vector<std::vector<std::string>>& table, std::size_t gap) {
  std::vector<std::vector<std::string>> rows = table;
  for (auto& row : rows)
    for (std::string& cell : row) cell = one_line(cell);
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c)
      line += c == 0 ? format("{:<{}}", row[c], widths[c]) : format("{:>{}}", row[c], widths[c] + gap);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string wrapped(const std::string& line) {
  constexpr std::size_t most = 119, indent = 2;
  std::string out, rest = line;
  while (rest.size() > most) {
    std::size_t space = rest.rfind(' ', most), at = space;
    while (at != rest.npos && at > indent && rest[at - 1] != ',' && rest[at - 1] != ';') at = rest.rfind(' ', at - 1);
    if (at == rest.npos || at <= indent) at = space;
    if (at == rest.npos || at <= indent) break;
    out += rest.substr(0, at) + "\n";
    rest.replace(0, at + 1, indent, ' ');
  }
  return out + rest;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  const auto distance = [&](std::string_view a, std::string_view b) {  // Levenshtein distance; keeps two rows of the matrix
    std::vector<std::size_t> last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      row[0] = i;
      for (std::size_t j = 1; j <= b.size(); ++j)
        row[j] = std::min({last[j] + 1, row[j - 1] + 1,
                           last[j - 1] + !same(static_cast<unsigned char>(a[i - 1]), static_cast<unsigned char>(b[j - 1]))});
      std::swap(last, row);
    }
    return last[b.size()];
  };
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    if (longer - shorter >= least) continue;  // saves time: `word` may be as long as a file
    if (const std::size_t d = distance(word, candidate); d < least) least = d, best = candidate;
  }
  return best;
}

}  // namespace fsdp
