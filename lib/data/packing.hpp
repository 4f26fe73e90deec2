// Which documents share a sequence, if they need not stay in the order of the file: best-fit packing (Ding et al. 2024, "Fewer
// Truncations Improve Language Modeling", section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// A document, or a part of one, in a sequence: the inputs are tokens [begin, begin + targets), and the targets are one token
/// later. `at` is its first column in the sequence.
struct Piece {
  std::uint64_t begin = 0;
  std::uint32_t targets = 0, at = 0;
};

/// Divides pieces, of at most T targets each, among sequences of T columns. Takes the pieces from the longest to the shortest
/// (equal ones in their order). Each goes to the sequence with the least free room that still holds it; of equal ones, to the
/// last that got this room. The result is in the order of the first piece of each sequence, and pieces of a sequence are in
/// their order.
std::vector<std::vector<Piece>> best_fit(std::span<const Piece> pieces, std::size_t T);

/// The number of pieces that best_fit() divides at a time, in the order of the file.
inline constexpr std::size_t packing_window = 65536;

}  // namespace fsdp
