// A sum of squares that does not depend on who adds what in which order: each square is cut into fixed-point digits against absolute
// exponents and added as integers, so that any partition over threads, ranks or units gives the same bits. The idea is that
// of Demmel and Nguyen's indexed sums ("Parallel reproducible summation", IEEE Trans. Computers 2015, section 3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/device.hpp"

namespace fsdp::kernels {

/// digits[i] counts units of 2^(32 i - 320): squares of fp32 numbers reach from 2^-298 to 2^256. Plain integers, so that partial
/// sums of ranks may be added by an integer all-reduce.
struct ExactSum {
  static constexpr std::size_t count = 19;
  std::array<std::int64_t, count> digits{};
  std::array<std::int64_t, count> tops{};  // how many blocks had their largest square in this digit: value() reads the highest three
  std::int64_t non_finite = 0;             // infinities and NaNs seen; they are not in digits
  ExactSum& operator+=(const ExactSum& other);
  /// Carries what exceeds 32 bits upwards, so that sums of very many ranks and elements fit.
  void normalize();
  /// The sum of the top digit that occurred and the two below it, rounded once to double: what lies lower may have been
  /// dropped by some partition and is dropped by all (relative error below n 2^-64).
  double value() const;
  /// All fields as one row of integers, for an all-reduce by sum.
  static constexpr std::size_t words = 2 * count + 1;
};

/// Adds the squares of x[0..n) to `sum`.
void add_squares(Stream& stream, ExactSum& sum, const float* x, std::size_t n);

}  // namespace fsdp::kernels
