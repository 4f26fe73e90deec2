// Row bodies of the exact sum of squares (exact_sum.hpp) and of an update's norm and loss (update_sums.hpp). The arithmetic of
// the sums is exact, so that the result depends neither on the order nor on the instruction set.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/update_sums.hpp"

namespace fsdp::kernels {

/// Sums of squares that have not been added to the ExactSum yet, for one digit and the two digits below it. One lane collects
/// the sums while the digit stays the same, and then adds all of them at once.
class PendingSquares {
 public:
  FSDP_INLINE explicit PendingSquares(ExactSum* to) : to_(to) {}

  /// Adds the digits of a block whose largest square is in `digit`.
  template <class Lanes>
  FSDP_INLINE void add(Lanes lanes, std::int64_t digit, const Several<double, 3>& digits) {
    if (digit != digit_) flush(lanes);
    digit_ = digit;
    blocks_ += 1;
    first_ += static_cast<std::int64_t>(digits.value[0]);
    second_ += static_cast<std::int64_t>(digits.value[1]);
    third_ += static_cast<std::int64_t>(digits.value[2]);
  }
  template <class Lanes>
  FSDP_INLINE void add_non_finite(Lanes lanes, std::int64_t count) const {
    ExactSum* const to = to_;
    lanes.once([=]() FSDP_LANE { Lanes::add(&to->non_finite, count); });
  }
  template <class Lanes>
  FSDP_INLINE void flush(Lanes lanes) {
    if (blocks_ == 0) return;
    lanes.once([p = *this]() FSDP_LANE {
      Lanes::add(&p.to_->tops[p.digit_], p.blocks_);
      Lanes::add(&p.to_->digits[p.digit_], p.first_);
      if (p.digit_ >= 1) Lanes::add(&p.to_->digits[p.digit_ - 1], p.second_);
      if (p.digit_ >= 2) Lanes::add(&p.to_->digits[p.digit_ - 2], p.third_);
    });
    blocks_ = first_ = second_ = third_ = 0;
  }

 private:
  ExactSum* to_;
  std::int64_t digit_ = 0, blocks_ = 0, first_ = 0, second_ = 0, third_ = 0;
};

/// Row r adds the squares of its blocks to `sum`; several rows may run at the same time.
struct Squares {
  static constexpr std::size_t block = 4096;
  /// A digit is an integer of 63 bits, and each square adds up to 32 bits to it.
  static constexpr std::size_t most_before_normalizing = std::size_t{1} << 30;
  ExactSum* sum;
  const float* x;
  std::size_t n, row;  // elements in total and per "row"

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    PendingSquares pending(sum);
    const std::size_t end = n < (r + 1) * row ? n : (r + 1) * row;
    for (std::size_t at = r * row; at < end; at += block)
      add_block(lanes, pending, end - at < block ? end - at : block, Element{}, x + at);
    pending.flush(lanes);
  }

  /// Adds one block.
  template <class Lanes, class Value, Array... A>
  FSDP_INLINE static void add(Lanes lanes, ExactSum* to, std::size_t count, Value value_of, A... arrays) {
    PendingSquares pending(to);
    add_block(lanes, pending, count, value_of, arrays...);
    pending.flush(lanes);
  }

  struct Element {
    FSDP_INLINE float operator()(float x) const { return x; }
  };

  /// The bits of a float without the sign. As integers they have the same order as |x|.
  FSDP_INLINE static std::int32_t magnitude(float value) { return __builtin_bit_cast(std::int32_t, value) & 0x7fffffff; }

  /// Adds the squares of the numbers that value_of() returns for `count` elements of the arrays, or, without arrays, for 0 to
  /// count - 1. `count` is at most `block`. value_of() is called several times per element and must return the same number each
  /// time. Arrays are only read.
  template <class Lanes, class Value, Array... A>
  FSDP_INLINE static void add_block(Lanes lanes, PendingSquares& pending, std::size_t count, Value value_of, A... arrays) {
    constexpr std::int32_t infinity = 0x7f800000;
    std::int32_t top = lanes.max(
        count, std::int32_t{0}, [=](auto... x) FSDP_LANE { return magnitude(value_of(x...)); }, arrays...);
    if (top >= infinity) {
      const std::int32_t non_finite = lanes.sum(
          count, [=](auto... x) FSDP_LANE { return magnitude(value_of(x...)) < infinity ? 0 : 1; }, arrays...);
      top = lanes.max(
          count, std::int32_t{0},
          [=](auto... x) FSDP_LANE {
            const std::int32_t bits = magnitude(value_of(x...));
            return bits < infinity ? bits : 0;
          },
          arrays...);
      pending.add_non_finite(lanes, non_finite);
    }
    if (top == 0) return;

    const double largest = static_cast<double>(__builtin_bit_cast(float, top));
    // The exponent of largest^2, from the double's bits; the square is at least 2^-298, so it is normal.
    const std::int64_t exponent = (__builtin_bit_cast(std::int64_t, largest * largest) >> 52) - 1023;
    const std::int64_t digit = (exponent + 320) / 32;
    const double scale = power_of_two(320 - 32 * digit);  // 1 / the unit of that digit
    // The first three digits of a square. At most 4096 numbers below 2^32 are added, which is exact in double.
    auto first = [=](auto... x) FSDP_LANE {
      const float x_i = value_of(x...);
      const double value = static_cast<double>(x_i);
      return magnitude(x_i) < infinity ? value * value * scale : 0.0;
    };
    auto next = [](double s) FSDP_LANE { return (s - floor(s)) * 0x1p32; };
    const Several<double, 3> d = lanes.sums(
        count, [=](auto... x) FSDP_LANE { return floor(first(x...)); },
        [=](auto... x) FSDP_LANE { return floor(next(first(x...))); },
        [=](auto... x) FSDP_LANE { return floor(next(next(first(x...)))); }, arrays...);
    pending.add(lanes, digit, d);
  }
};

/// Row r: normalizes sum r.
struct NormalizeSums {
  ExactSum* sums;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    ExactSum* const sum = sums + r;
    lanes.once([=]() FSDP_LANE { sum->normalize(); });
  }
};

/// One row: computes an update's norm, scale and finiteness from its sums.
struct FinishNorm {
  UpdateSums* sums;
  UpdateRules rules;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t) const {
    lanes.once([k = *this]() FSDP_LANE {
      const UpdateRules& by = k.rules;
      const double norm = square_root(k.sums->squares.value()), unscaled = norm / by.loss_scale;
      const double ratio = by.clip_norm / (unscaled + 1e-6);
      const double clipping = by.clip_norm > 0 && ratio < 1 ? ratio : 1;
      const bool is_finite = k.sums->squares.non_finite == 0 && k.sums->loss.non_finite == 0;
      const bool is_spike = k.sums->loss.value() / by.tokens > by.most_loss || unscaled > by.most_norm;
      k.sums->norm = {norm, clipping / by.loss_scale, is_finite && !is_spike};
    });
  }
};

/// One row: adds the sum of n losses to `total`.
struct AddLosses {
  LossSum* total;
  const float* losses;
  std::size_t n;

  FSDP_INLINE static bool is_finite(float loss) { return loss - loss == 0; }
  FSDP_INLINE static double in_units(float loss) {
    constexpr double most = 0x1p20;
    const double value = is_finite(loss) ? static_cast<double>(loss) : 0;
    return (value > most ? most : value < -most ? -most : value) * 0x1p20;
  }

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t) const {
    const Several<std::int64_t, 3> sums = lanes.sums(
        n, [](float loss) FSDP_LANE { return static_cast<std::int64_t>(floor(in_units(loss))); },
        [](float loss) FSDP_LANE {
          const double units = in_units(loss);
          return static_cast<std::int64_t>((units - floor(units)) * 0x1p32);
        },
        [](float loss) FSDP_LANE { return std::int64_t{is_finite(loss) ? 0 : 1}; }, losses);
    lanes.once([sums, to = total]() FSDP_LANE { *to += LossSum{sums.value[0], sums.value[1], sums.value[2]}; });
  }
};

}  // namespace fsdp::kernels
