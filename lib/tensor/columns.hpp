// The number of columns of a micro-batch: [B, T] inputs and targets, of which the last columns may have no target that counts.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>

namespace fsdp {

/// How the columns up to the last target that counts are rounded up. Few different numbers of columns mean few shapes of matrix
/// products, whose first use costs time. Tensor cores want the number of rows, B times the columns, to be a multiple of 8.
struct ColumnRule {
  std::size_t B = 1, T = 1;
  std::size_t multiple = 0;  // of the columns; 0: a multiple of 8 rows, and of 1/parts of the power of two below
  std::size_t parts = 32;

  /// Returns a number from `present` to T; at least 1.
  constexpr std::size_t columns(std::size_t present) const {
    const std::size_t least = std::max<std::size_t>(present, 1);
    const std::size_t step =
        multiple > 0 ? multiple : std::max(std::size_t{8} / std::gcd(std::size_t{8}, B), std::bit_floor(least) / parts);
    return std::min(T, (least + step - 1) / step * step);
  }
};

}  // namespace fsdp
