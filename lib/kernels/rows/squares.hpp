// Body of the exact sum of squares: see exact_sum.hpp. All arithmetic is exact, so that order and instruction set do not
// matter.
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
      add_block(lanes, to, n - b * block < block ? n - b * block : block, Element{x + b * block});
  }

  struct Element {
    const float* x;
    FSDP_INLINE float operator()(std::size_t i) const { return x[i]; }
  };

  /// The bits without the sign: they are in the order of |x|.
  FSDP_INLINE static std::int32_t magnitude(float value) { return __builtin_bit_cast(std::int32_t, value) & 0x7fffffff; }

  /// The squares of value(0), ... value(count - 1), which gives the same number each time; at most `block` of them.
  template <class Lanes, class Value>
  FSDP_INLINE static void add_block(Lanes lanes, ExactSum* to, std::size_t count, Value value_of) {
    constexpr std::int32_t infinity = 0x7f800000;
    std::int32_t top = lanes.max(count, std::int32_t{0}, [=](std::size_t i) FSDP_LANE { return magnitude(value_of(i)); });
    if (top >= infinity) {
      const std::int32_t non_finite =
          lanes.sum(count, [=](std::size_t i) FSDP_LANE { return magnitude(value_of(i)) < infinity ? 0 : 1; });
      top = lanes.max(count, std::int32_t{0}, [=](std::size_t i) FSDP_LANE {
        const std::int32_t bits = magnitude(value_of(i));
        return bits < infinity ? bits : 0;
      });
      lanes.once([=]() FSDP_LANE { to->non_finite += non_finite; });
    }
    if (top == 0) return;

    const double largest = static_cast<double>(__builtin_bit_cast(float, top));
    // Exponent of its square, read from the double's bits; the square is at least 2^-298, so it is normal.
    const std::int64_t exponent = (__builtin_bit_cast(std::int64_t, largest * largest) >> 52) - 1023;
    const std::int64_t digit = (exponent + 320) / 32;
    const double scale = __builtin_bit_cast(double, (1023 + 320 - 32 * digit) << 52);  // 1 / unit of that digit
    // The first three digits of the square of value_of(i). At most 4096 digits below 2^32 are added: exact in double.
    auto first = [=](std::size_t i) FSDP_LANE {
      const float x_i = value_of(i);
      const double value = static_cast<double>(x_i);
      return magnitude(x_i) < infinity ? value * value * scale : 0.0;
    };
    auto next = [](double s) FSDP_LANE { return (s - floor(s)) * 0x1p32; };
    const Several<double, 3> d = lanes.sums(
        count, [=](std::size_t i) FSDP_LANE { return floor(first(i)); },
        [=](std::size_t i) FSDP_LANE { return floor(next(first(i))); },
        [=](std::size_t i) FSDP_LANE { return floor(next(next(first(i)))); });
    lanes.once([=]() FSDP_LANE {
      to->tops[digit] += 1;
      to->digits[digit] += static_cast<std::int64_t>(d.value[0]);
      if (digit >= 1) to->digits[digit - 1] += static_cast<std::int64_t>(d.value[1]);
      if (digit >= 2) to->digits[digit - 2] += static_cast<std::int64_t>(d.value[2]);
    });
  }
};

}  // namespace fsdp::kernels
