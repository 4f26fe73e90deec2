// A sum of squares that does not depend on the order or partition of the additions. Each square is cut into fixed-point digits
// with absolute exponents, which are added as integers. So any partition over threads, ranks or units gives the same bits. The
// idea is that of Demmel and Nguyen's indexed sums ("Parallel reproducible summation", IEEE Trans. Computers 2015, section 3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/device.hpp"
#include "kernels/math.hpp"

namespace fsdp::kernels {

/// digits[i] counts units of 2^(32 i - 320): squares of fp32 numbers range from 2^-298 to 2^256. All fields are integers, so
/// that ranks can add their partial sums by an integer all-reduce, in place, of `words` integers.
struct ExactSum {
  static constexpr std::size_t count = 19;
  std::array<std::int64_t, count> digits{};
  /// carries[i] counts units of 2^32 of digits[i]. Carries are not added to digits[i + 1]: when value() ignores a low digit, it
  /// must also ignore the carries of that digit.
  std::array<std::int64_t, count> carries{};
  std::array<std::int64_t, count> tops{};  // tops[i]: the number of blocks of squares whose largest one is in digit i
  std::int64_t non_finite = 0;             // the number of infinities and NaNs; they are not in digits

  FSDP_INLINE_ANYWHERE ExactSum& operator+=(const ExactSum& other) {
    for (std::size_t i = 0; i < count; ++i) {
      digits[i] += other.digits[i];
      carries[i] += other.carries[i];
      tops[i] += other.tops[i];
    }
    non_finite += other.non_finite;
    normalize();
    return *this;
  }

  /// Keeps the lowest 32 bits of each digit and moves the others into `carries`. add_squares() and += normalize the sum, so
  /// that the integers of up to 2^31 ranks can be added.
  FSDP_INLINE_ANYWHERE void normalize() {
    for (std::size_t i = 0; i < count; ++i) {
      carries[i] += digits[i] >> 32;
      digits[i] &= 0xffffffff;
    }
  }

  /// The sum of the highest digit that occurred and the two digits below it, rounded once to double. Lower digits may be
  /// missing in some partitions, so value() always ignores them. The relative error of a sum of n squares is below n * 2^-64.
  /// NaN if non_finite > 0.
  FSDP_INLINE_ANYWHERE double value() const {
    if (non_finite > 0) return std::numeric_limits<double>::quiet_NaN();
    std::size_t top = count;
    while (top > 0 && tops[top - 1] == 0) --top;
    if (top == 0) return 0;
    --top;
    // The three digits, in units of the lowest, carried upwards so that middle and low are below 2^32.
    __int128 low = wide(top, 2), middle = wide(top, 1), high = wide(top, 0);
    middle += low >> 32;
    low &= 0xffffffff;
    high += middle >> 32;
    middle &= 0xffffffff;
    // high is below 2^95 (fewer than 2^63 squares). Once high exceeds 2^60, the lowest digit is at least 32 bits below the bits
    // that decide the rounding, so one sticky bit replaces it.
    const std::int64_t exponent = 32 * static_cast<std::int64_t>(top) - 320;
    if (high < (__int128{1} << 60))
      return static_cast<double>((high << 64) | (middle << 32) | low) * power_of_two(exponent - 64);
    return static_cast<double>((high << 32) | middle | (low != 0 ? 1 : 0)) * power_of_two(exponent - 32);
  }

  /// The number of integers of the struct, for an all-reduce by sum.
  static constexpr std::size_t words = 3 * count + 1;

 private:
  /// Digit top - below with its carries; 0 if there is no such digit.
  FSDP_INLINE_ANYWHERE __int128 wide(std::size_t top, std::size_t below) const {
    return below > top ? 0 : digits[top - below] + static_cast<__int128>(carries[top - below]) * (__int128{1} << 32);
  }
};
static_assert(std::is_standard_layout_v<ExactSum> && sizeof(ExactSum) == ExactSum::words * sizeof(std::int64_t));

/// Adds the squares of x[0..n) to `sum`. Both must be in memory of the stream's device.
void add_squares(Stream& stream, ExactSum& sum, const float* x, std::size_t n);
/// Counts the infinities and NaNs of x[0..n) in `sum`, and adds no squares.
void add_non_finite(Stream& stream, ExactSum& sum, const float* x, std::size_t n);

}  // namespace fsdp::kernels
