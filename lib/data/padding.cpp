#include "data/padding.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/format.hpp"
#include "data/length_order.hpp"
#include "data/packing.hpp"

namespace fsdp {

namespace {

/// The positions that are computed for sequences of these columns; column_of(i): of the one that is read at place i.
template <class ColumnOf>
double computed_positions(std::size_t sequences, const ColumnRule& rule, const ColumnOf& column_of) {
  std::size_t positions = 0;
  for (std::size_t first = 0; first < sequences; first += rule.B) {
    std::size_t most = 0;
    for (std::size_t i = first; i < std::min(sequences, first + rule.B); ++i) most = std::max<std::size_t>(most, column_of(i));
    positions += rule.B * rule.columns(most);
  }
  return static_cast<double>(positions);
}

std::string percent(double share) { return format("{:.{}f} %", 100 * share, share < 0.0995 ? 1 : 0); }

}  // namespace

Padding padding_of(std::span<const std::uint32_t> columns, const ColumnRule& rule, std::uint64_t seed) {
  Padding all{.sequences = columns.size()};
  if (columns.empty()) return all;
  const double present = std::accumulate(columns.begin(), columns.end(), 0.0), n = static_cast<double>(columns.size());
  const auto [least, most] = std::minmax_element(columns.begin(), columns.end());
  all.mean = present / n, all.least = *least, all.most = *most;
  const auto length = [&](std::uint64_t i) { return columns[i]; };
  const double as_read = computed_positions(columns.size(), rule, length);
  const std::size_t batches = (columns.size() + rule.B - 1) / rule.B;
  all.computed = as_read / static_cast<double>(batches * rule.B * rule.T);
  all.as_read = 1 - present / as_read;
  const LengthOrder order(columns.size(), seed, length);
  all.by_length = 1 - present / computed_positions(columns.size(), rule, [&](std::size_t i) { return columns[order.at(i)]; });
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> packed;
  for (const std::uint32_t one : columns)
    if (one > 0) pieces.push_back({pieces.size(), one, 0});
  for (const std::vector<Piece>& sequence : best_fit(pieces, rule.T))
    packed.push_back(sequence.back().at + sequence.back().targets);
  all.best_fit = 1 - present / computed_positions(packed.size(), rule, [&](std::size_t i) { return packed[i]; });
  return all;
}

std::string describe(const Padding& padding, const ColumnRule& rule) {
  return format("rows of {:.0f} columns on average ({} to {}): {} of {} x {} positions are computed, {} of that is padding",
                padding.mean, padding.least, padding.most, percent(padding.computed), rule.B, rule.T, percent(padding.as_read));
}

}  // namespace fsdp
