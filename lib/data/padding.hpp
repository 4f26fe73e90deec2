// How much of what is computed is padding, and how much it would be with other ways to read the same sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/columns.hpp"

namespace fsdp {

struct Padding {
  std::size_t sequences = 0;  // that were looked at
  double mean = 0;            // of their columns, up to the last target that counts
  std::uint32_t least = 0, most = 0;
  double computed = 0;  // the positions of micro-batches as a share of B T
  // The share of these positions that is padding: as they are read, grouped by length, and packed by best fit. The last is for
  // sequences of one document each.
  double as_read = 0, by_length = 0, best_fit = 0;

  /// The mean number of columns of a micro-batch.
  double columns(std::size_t T) const { return computed * static_cast<double>(T); }
};

/// The padding of micro-batches of `rule.B` sequences, which have these `columns`, in the order in which they are read.
Padding padding_of(std::span<const std::uint32_t> columns, const ColumnRule& rule, std::uint64_t seed);

/// "rows of 48 columns on average (12 to 211): 4 x 1,024 positions are computed to 31 %, 22 % of that is padding".
std::string describe(const Padding& padding, const ColumnRule& rule);

}  // namespace fsdp
