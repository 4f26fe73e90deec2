// A sum of squares that does not depend on who adds what in which order: each square is cut into fixed-point digits against
// absolute exponents and added as integers, so that any partition over threads, ranks or units gives the same bits. The idea is
// that of Demmel and Nguyen's indexed sums ("Parallel reproducible summation", IEEE Trans. Computers 2015, section 3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/device.hpp"

namespace fsdp::kernels {

/// digits[i] counts units of 2^(32 i - 320): squares of fp32 numbers reach from 2^-298 to 2^256. Plain integers, so that
/// partial sums of ranks may be added by an integer all-reduce, in place: the struct is a row of `words` integers.
struct ExactSum {
  static constexpr std::size_t count = 19;
  std::array<std::int64_t, count> digits{};
  std::array<std::int64_t, count> carries{};  // units of 2^32 digits. They stay with their digit: a carry out of a digit that
                                              // some partition has dropped must not reach one that counts
  std::array<std::int64_t, count>
      tops{};                   // how many blocks had their largest square in this digit: value() reads the highest three
  std::int64_t non_finite = 0;  // infinities and NaNs seen; they are not in digits
  ExactSum& operator+=(const ExactSum& other);
  /// Moves what exceeds 32 bits into carries. add_squares() and += leave a sum so: then 2^31 ranks may be added as integers.
  void normalize();
  /// The sum of the top digit that occurred and the two below it, rounded once to double: what lies lower may have been
  /// dropped by some partition and is dropped by all (relative error below n 2^-64). NaN if non_finite.
  double value() const;
  /// All fields as one row of integers, for an all-reduce by sum.
  static constexpr std::size_t words = 3 * count + 1;
};
static_assert(std::is_standard_layout_v<ExactSum> && sizeof(ExactSum) == ExactSum::words * sizeof(std::int64_t));

/// Adds the squares of x[0..n) to `sum`.
void add_squares(Stream& stream, ExactSum& sum, const float* x, std::size_t n);

}  // namespace fsdp::kernels
