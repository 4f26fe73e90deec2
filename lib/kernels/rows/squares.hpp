// Row bodies of the exact sum of squares (exact_sum.hpp) and of an update's norm and loss (update_sums.hpp). The arithmetic of
// the sums is exact, so that the result depends neither on the order nor on the instruction set.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/update_sums.hpp"

namespace fsdp::kernels {

/// A lane's sums of squares that have not been added to the ExactSum yet, for one digit and the two digits below it. Each lane
/// collects its sums while the digit stays the same. Then one lane adds the sums of all lanes at once.
class PendingSquares {
 public:
  FSDP_INLINE explicit PendingSquares(ExactSum* to) : to_(to) {}

  /// Adds this lane's digits of a block whose largest square is in `digit`.
  template <class Lanes>
  FSDP_INLINE void add(Lanes lanes, std::int64_t digit, const Several<std::int64_t, 3>& digits) {
    if (digit != digit_) flush(lanes);
    digit_ = digit;
    blocks_ += 1;
    for (int i = 0; i < 3; ++i) digits_.value[i] += digits.value[i];
  }
  template <class Lanes>
  FSDP_INLINE void add_non_finite(Lanes lanes, std::int64_t count) const {
    ExactSum* const to = to_;
    lanes.once([=]() FSDP_LANE { Lanes::add(&to->non_finite, count); });
  }
  template <class Lanes>
  FSDP_INLINE void flush(Lanes lanes) {
    if (blocks_ == 0) return;
    const Several<std::int64_t, 3> total = lanes.total(digits_);
    lanes.once([p = *this, total]() FSDP_LANE {
      Lanes::add(&p.to_->tops[p.digit_], p.blocks_);
      Lanes::add(&p.to_->digits[p.digit_], total.value[0]);
      if (p.digit_ >= 1) Lanes::add(&p.to_->digits[p.digit_ - 1], total.value[1]);
      if (p.digit_ >= 2) Lanes::add(&p.to_->digits[p.digit_ - 2], total.value[2]);
    });
    blocks_ = 0;
    digits_ = {};
  }

 private:
  ExactSum* to_;
  std::int64_t digit_ = 0, blocks_ = 0;
  Several<std::int64_t, 3> digits_{};
};

#if defined(FSDP_GPU)
/// A lane's sum of one digit of squares. It is a double from 2^52 to 2^53 in units of the digit, so that a sum that is rounded
/// down loses only the digits below.
class DigitSum {
 public:
  FSDP_INLINE explicit DigitSum(double unit) : zero_(unit * 0x1p52), sum_(zero_) {}

  /// Adds the digit of `rest`, at least 0 and below 2^32 units. Returns what is left for the digits below.
  FSDP_INLINE double add(double rest) {
    const double sum = add_rounded_down(sum_, rest), left = rest - (sum - sum_);
    sum_ = sum;
    return left;
  }
  FSDP_INLINE std::int64_t units() const {
    return __builtin_bit_cast(std::int64_t, sum_) - __builtin_bit_cast(std::int64_t, zero_);
  }

 private:
  double zero_, sum_;
};
#endif

/// Row r counts the infinities and NaNs of its block.
struct CountNonFinite {
  static constexpr std::size_t block = 4096;
  ExactSum* sum;
  const float* x;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t begin = r * block, count = n - begin < block ? n - begin : block;
    const std::int32_t found = lanes.sum(
        count,
        [](float value) FSDP_LANE { return (__builtin_bit_cast(std::int32_t, value) & 0x7fffffff) < 0x7f800000 ? 0 : 1; },
        x + begin);
    ExactSum* const to = sum;
    if (found > 0) lanes.once([=]() FSDP_LANE { Lanes::add(&to->non_finite, static_cast<std::int64_t>(found)); });
  }
};

/// Row r adds the squares of its blocks to `sum`; several rows may run at the same time.
struct Squares {
  static constexpr unsigned cuda_threads = 128;  // each lane repeats the instructions of a block that are not for its elements
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
    std::int32_t non_finite = 0,
                 top = lanes.max(
                     count, std::int32_t{0}, [=](auto... x) FSDP_LANE { return magnitude(value_of(x...)); }, arrays...);
    if (top >= infinity) {
      non_finite = lanes.sum(
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
#if defined(FSDP_GPU)
    const double unit = power_of_two(32 * digit - 320);
    DigitSum first(unit), second(unit * 0x1p-32), third(unit * 0x1p-64);
    const auto add = [&](float x_i) {
      const double value = static_cast<double>(x_i);
      third.add(second.add(first.add(value * value)));
    };
    if (non_finite == 0)
      lanes.each(
          count, [&](auto... x) { add(value_of(x...)); }, arrays...);
    else
      lanes.each(
          count,
          [&](auto... x) {
            const float x_i = value_of(x...);
            if (magnitude(x_i) < infinity) add(x_i);
          },
          arrays...);
    pending.add(lanes, digit, {{first.units(), second.units(), third.units()}});
#else
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
    pending.add(lanes, digit,
                {{static_cast<std::int64_t>(d.value[0]), static_cast<std::int64_t>(d.value[1]),
                  static_cast<std::int64_t>(d.value[2])}});
#endif
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

/// Adds the entropies of the predictions of n rows, and the number of their targets with the largest logit.
struct AddPredictions {
  LossSum* total;
  const SoftmaxStats* stats;
  const std::int32_t* targets;
  std::size_t n;

  /// The entropy of a row in units of LossSum; 0 if the row does not count.
  FSDP_INLINE static double in_units(const SoftmaxStats& s, std::int32_t target) {
    if (target < 0 || !(s.total == s.total)) return 0;
    return AddLosses::in_units(log(s.total) + (s.top - s.weighted / s.total));
  }

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t) const {
    const SoftmaxStats* const s = stats;
    const std::int32_t* const t = targets;
    const Several<std::int64_t, 3> sums = lanes.sums(
        n, [=](std::size_t i) FSDP_LANE { return static_cast<std::int64_t>(floor(in_units(s[i], t[i]))); },
        [=](std::size_t i) FSDP_LANE {
          const double units = in_units(s[i], t[i]);
          return static_cast<std::int64_t>((units - floor(units)) * 0x1p32);
        },
        [=](std::size_t i) FSDP_LANE { return std::int64_t{t[i] >= 0 && s[i].at_target == s[i].top ? 1 : 0}; });
    lanes.once([sums, to = total]() FSDP_LANE {
      LossSum more;
      more.entropy_units = sums.value[0], more.entropy_fractions = sums.value[1], more.likeliest = sums.value[2];
      *to += more;
    });
  }
};

}  // namespace fsdp::kernels
