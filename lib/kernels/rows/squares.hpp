// Body of the exact sum of squares: see exact_sum.hpp. All arithmetic is exact, so that order and instruction set do not matter.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Partition p of `partitions` adds its blocks to partial[p].
struct Squares {
  static constexpr std::size_t block = 4096;
  ExactSum* partial;
  const float* x;
  std::size_t n, partitions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t p) const {
    const std::size_t blocks = (n + block - 1) / block;
    ExactSum* to = partial + p;
    for (std::size_t b = p * blocks / partitions; b < (p + 1) * blocks / partitions; ++b)
      add_block(lanes, to, x + b * block, n - b * block < block ? n - b * block : block);
  }

  /// Exact: s < 2^32 times the unit of the first digit; takes off the digit and goes on to the next.
  FSDP_INLINE static double take_digit(double& s) {
    const double digit = __builtin_floor(s);
    s = (s - digit) * 0x1p32;
    return digit;
  }

  template <class Lanes>
  FSDP_INLINE static void add_block(Lanes lanes, ExactSum* to, const float* in, std::size_t count) {
    constexpr std::int32_t infinity = 0x7f800000;
    const std::int32_t top = lanes.max(count, std::int32_t{0}, [=](std::size_t i) FSDP_LANE {
      const std::int32_t bits = __builtin_bit_cast(std::int32_t, in[i]) & 0x7fffffff;
      return bits < infinity ? bits : 0;
    });
    const std::int32_t non_finite = lanes.sum(count, [=](std::size_t i) FSDP_LANE {
      const std::int32_t bits = __builtin_bit_cast(std::int32_t, in[i]) & 0x7fffffff;
      return bits < infinity ? 0 : 1;
    });
    if (non_finite > 0) lanes.once([=]() FSDP_LANE { to->non_finite += non_finite; });
    if (top == 0) return;

    const double largest = static_cast<double>(__builtin_bit_cast(float, top));
    // Exponent of its square, read from the double's bits; the square is at least 2^-298, so it is normal.
    const std::int64_t exponent = (__builtin_bit_cast(std::int64_t, largest * largest) >> 52) - 1023;
    const std::int64_t digit = (exponent + 320) / 32;
    const double scale = __builtin_bit_cast(double, (1023 + 320 - 32 * digit) << 52);  // 1 / unit of that digit
    auto finite_square = [=](std::size_t i) FSDP_LANE {
      const std::int32_t bits = __builtin_bit_cast(std::int32_t, in[i]) & 0x7fffffff;
      const double value = static_cast<double>(in[i]);
      return bits < infinity ? value * value * scale : 0.0;
    };
    // At most 4096 digits below 2^32 are added: exact in double.
    const double d2 = lanes.sum(count, [=](std::size_t i) FSDP_LANE { return __builtin_floor(finite_square(i)); });
    const double d1 = lanes.sum(count, [=](std::size_t i) FSDP_LANE {
      double s = finite_square(i);
      take_digit(s);
      return take_digit(s);
    });
    const double d0 = lanes.sum(count, [=](std::size_t i) FSDP_LANE {
      double s = finite_square(i);
      take_digit(s);
      take_digit(s);
      return take_digit(s);
    });
    lanes.once([=]() FSDP_LANE {
      to->tops[digit] += 1;
      to->digits[digit] += static_cast<std::int64_t>(d2);
      if (digit >= 1) to->digits[digit - 1] += static_cast<std::int64_t>(d1);
      if (digit >= 2) to->digits[digit - 2] += static_cast<std::int64_t>(d0);
    });
  }
};

}  // namespace fsdp::kernels
