#include "kernels/exact_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void ExactSum::normalize() {
  for (std::size_t i = 0; i < count; ++i) {
    carries[i] += digits[i] >> 32;
    digits[i] &= 0xffffffff;
  }
}

ExactSum& ExactSum::operator+=(const ExactSum& other) {
  for (std::size_t i = 0; i < count; ++i) {
    digits[i] += other.digits[i];
    carries[i] += other.carries[i];
    tops[i] += other.tops[i];
  }
  non_finite += other.non_finite;
  normalize();
  return *this;
}

double ExactSum::value() const {
  if (non_finite > 0) return std::numeric_limits<double>::quiet_NaN();
  std::size_t top = count;
  while (top > 0 && tops[top - 1] == 0) --top;
  if (top == 0) return 0;
  --top;
  // Three digits in units of the lowest: carried upwards, so that middle and low are below 2^32.
  auto wide = [&](std::size_t below) -> __int128 {
    return below > top ? 0 : digits[top - below] + static_cast<__int128>(carries[top - below]) * (__int128{1} << 32);
  };
  constexpr __int128 mask = 0xffffffff;
  __int128 low = wide(2), middle = wide(1), high = wide(0);
  middle += low >> 32;
  low &= mask;
  high += middle >> 32;
  middle &= mask;
  // high is below 2^95 (fewer than 2^63 squares); the lowest digit is at least 32 bits below what rounding looks at once high
  // is beyond 2^60, so one sticky bit stands for it then.
  const int exponent = 32 * static_cast<int>(top) - 320;
  if (high < (__int128{1} << 60)) return std::ldexp(static_cast<double>((high << 64) | (middle << 32) | low), exponent - 64);
  return std::ldexp(static_cast<double>((high << 32) | middle | (low != 0 ? 1 : 0)), exponent - 32);
}

void add_squares(Stream& stream, ExactSum& sum, const float* x, std::size_t n) {
  constexpr std::size_t most = 64;
  std::array<ExactSum, most> partial;
  const std::size_t partitions = std::min(most, (n + Squares::block - 1) / Squares::block);
  launch(stream, Squares{partial.data(), x, n, partitions}, partitions);
  for (std::size_t p = 0; p < partitions; ++p) sum += partial[p];
}

}  // namespace fsdp::kernels
