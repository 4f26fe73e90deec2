// Numbers with units, read and written: "64M", "2GiB", "90s", "30min", "1.5 GiB".
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace fsdp {

using fmt::format;

/// "0 B", "12.3 KiB", "1.61 GiB": binary units, three digits.
std::string format_bytes(double bytes);
/// "3.32 M", "124 M", "7.00 B": decimal units, three digits.
std::string format_count(double count);
/// "1 rank", "3 ranks". `many` is the plural if it is not `one` with an "s": "1 micro-batch", "3 micro-batches".
template <std::integral Count>
std::string plural(Count n, std::string_view one, std::string_view many = {}) {
  return n == 1 ? format("1 {}", one) : many.empty() ? format("{} {}s", n, one) : format("{} {}", n, many);
}
/// "850 ms", "12.3 s", "4:05 min", "2:07:30 h".
std::string format_duration(double seconds);

/// Removes the underscores between digits, as in "100_000_000".
std::string without_separators(std::string_view number);
/// Reads a count or a size in bytes. The number may have a unit, either k, M, G, T (powers of 1000) or KiB, MiB, GiB, TiB
/// (powers of 1024). A final "B" is accepted. Throws UserError.
std::size_t parse_size(std::string_view text);
/// Seconds from "90", "90s", "30min", "2h", "1d". Throws UserError.
double parse_duration(std::string_view text);

/// Makes text from outside safe for a message, as one_line() does (base/clean_text.hpp). If the text has more than `most`
/// bytes, cuts it and appends "...".
std::string excerpt(std::string_view text, std::size_t most = 200);

/// Returns `message` as programs print it: as one_line() makes it (base/clean_text.hpp), and without the middle part if it is
/// very long.
std::string printable(std::string_view message);

/// Formats a table: each of `rows` is a list of cells, and becomes a line of text. The first column is aligned left, the others
/// right, with at least `gap` spaces before each cell. Cells are printed as one_line() makes them.
std::string lay_out(const std::vector<std::vector<std::string>>& rows, std::size_t gap);

/// A line for the log of a run. If it has 120 characters or more, it is broken at spaces, after commas and semicolons if
/// possible, and further lines are indented.
std::string wrapped(const std::string& line);

/// "node1", "node1 and node2", "node1, node2 and node3", "node1, node2, node3 and 5 more".
std::string list_of(const std::vector<std::string>& names);

/// Returns the candidate with the smallest edit distance to `word`, or "" if no candidate is similar enough.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace fsdp
