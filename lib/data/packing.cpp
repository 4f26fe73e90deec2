#include "data/packing.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.hpp"

namespace fsdp {

std::vector<std::vector<Piece>> best_fit(std::span<const Piece> pieces, std::size_t T) {
  std::vector<Piece> longest_first(pieces.begin(), pieces.end());
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [](const Piece& a, const Piece& b) { return a.targets > b.targets; });
  std::vector<std::vector<Piece>> sequences;
  std::vector<std::vector<std::size_t>> with_room(T + 1);  // indices of sequences, by their free columns
  std::vector<std::uint64_t> some((T + 64) / 64);          // bit r: with_room[r] is not empty
  const auto least_room = [&](std::size_t needed) {
    std::uint64_t word = some[needed / 64] & (~std::uint64_t{0} << needed % 64);
    for (std::size_t i = needed / 64;;) {
      if (word != 0) return 64 * i + static_cast<std::size_t>(std::countr_zero(word));
      if (++i == some.size()) return T;  // a new sequence
      word = some[i];
    }
  };
  for (const Piece& piece : longest_first) {
    expect(piece.targets > 0 && piece.targets <= T, "a piece fits into a sequence");
    const std::size_t room = least_room(piece.targets);
    std::size_t sequence = sequences.size();
    if (with_room[room].empty()) {
      sequences.emplace_back();
    } else {
      sequence = with_room[room].back();
      with_room[room].pop_back();
      if (with_room[room].empty()) some[room / 64] &= ~(std::uint64_t{1} << room % 64);
    }
    sequences[sequence].push_back(piece);
    const std::size_t left = room - piece.targets;
    if (left == 0) continue;
    with_room[left].push_back(sequence);
    some[left / 64] |= std::uint64_t{1} << left % 64;
  }
  const auto earlier = [](const Piece& a, const Piece& b) { return a.begin < b.begin; };
  for (std::vector<Piece>& sequence : sequences) {
    std::sort(sequence.begin(), sequence.end(), earlier);
    std::uint32_t at = 0;
    for (Piece& piece : sequence) piece.at = std::exchange(at, at + piece.targets);
  }
  std::sort(sequences.begin(), sequences.end(), [&](const auto& a, const auto& b) { return earlier(a.front(), b.front()); });
  return sequences;
}

}  // namespace fsdp
