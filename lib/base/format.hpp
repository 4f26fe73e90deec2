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
/// "1 rank", "3 ranks"; of words that do not just get an s, "1 micro-batch", "3 micro-batches".
template <std::integral Count>
std::string plural(Count n, std::string_view one, std::string_view many = {}) {
  return n == 1 ? format("1 {}", one) : many.empty() ? format("{} {}s", n, one) : format("{} {}", n, many);
}
/// "850 ms", "12.3 s", "4:05 min", "2:07:30 h".
std::string format_duration(double seconds);

/// Removes the underscores of a number such as "100_000_000"; returns other texts unchanged.
std::string without_separators(std::string_view number);
/// A count or a size in bytes: plain, or with k, M, G, T (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024); a final "B"
/// is accepted. Throws UserError.
std::size_t parse_size(std::string_view text);
/// Seconds from "90", "90s", "30min", "2h", "1d". Throws UserError.
double parse_duration(std::string_view text);

/// Text from outside as it can stand in a message: control characters and bytes beyond `most` are left out, and "..." says so.
std::string excerpt(std::string_view text, std::size_t most = 200);

/// A message as it is printed: without control characters but line ends, and without the middle of a very long one.
std::string printable(std::string_view message);

/// Rows of cells as lines: the first column to the left, the others to the right, `gap` spaces before each.
std::string lay_out(const std::vector<std::vector<std::string>>& rows, std::size_t gap);

/// "node1", "node1 and node2", "node1, node2 and node3", "node1, node2, node3 and 5 more".
std::string list_of(const std::vector<std::string>& names);

/// The candidate nearest to `word` in edit distance if it is near enough to be meant, else "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace fsdp
