// Shapes, ranges of elements, and the division of ranges. This code computes only with integers: it neither touches memory nor
// communicates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace fsdp {

/// The extents of a row-major tensor, outermost first, in the order that Hugging Face uses.
using Shape = std::vector<std::size_t>;

std::size_t numel(const Shape& shape);  // the product of the extents; 1 for an empty shape
/// "[2304, 768]"
std::string to_string(const Shape& shape);

/// Half-open range of element indices.
struct Range {
  std::size_t begin = 0, end = 0;                   // `end` is the index after the last
  std::size_t size() const { return end - begin; }  // the number of elements
  bool empty() const { return begin >= end; }       // the range has no elements
  bool operator==(const Range&) const = default;
};

/// The intersection of two ranges; an empty range {x, x} if they have none.
inline Range intersect(Range a, Range b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// `n` rounded up to a multiple of `unit` (unit > 0).
constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// Returns part `i` of `n` elements that are divided into `parts` consecutive parts. The parts' sizes differ by at most one;
/// the larger parts come first.
constexpr Range share(std::size_t n, std::size_t parts, std::size_t i) {
  const std::size_t small = n / parts, extra = n % parts;
  const std::size_t begin = i * small + std::min(i, extra);
  return {begin, begin + small + (i < extra ? 1 : 0)};
}

/// A box of a tensor. `start` and `count` have one number per dimension: the first index and the number of indices.
struct Hyperslab {
  Shape start, count;      // `start`: the first index; `count`: the number of indices
  std::size_t offset = 0;  // the number of elements of the flat range before this box
};

/// Divides a flat range of elements of a row-major tensor into boxes, in order. A matrix gives up to three: the end of a row,
/// whole rows, and the start of a row. Requires range.end <= numel(shape).
std::vector<Hyperslab> hyperslabs(const Shape& shape, Range range);

}  // namespace fsdp
