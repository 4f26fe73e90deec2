// A sum of losses that does not depend on the order or partition of the additions: each number is cut into two fixed-point
// digits, which are added as integers. So an update has the same loss for every distribution of its sequences over ranks and
// micro-batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/device.hpp"
#include "kernels/math.hpp"

namespace fsdp::kernels {

/// The sum of fp32 losses of tokens. It is exact, except that a loss is limited to +-2^20, and that bits below 2^-52 are
/// rounded down. All fields are integers, so that ranks can add their sums by an integer all-reduce, in place.
struct LossSum {
  std::int64_t units = 0;       // in units of 2^-20
  std::int64_t fractions = 0;   // in units of 2^-52; bits above the lowest 32 are carried into `units`
  std::int64_t non_finite = 0;  // the number of infinities and NaNs; they are not in the other fields
  // Of the predictions of a head, set by add_predictions(): the sum of their entropies in the same units, without infinities
  // and NaNs, and the number of targets with the largest logit.
  std::int64_t entropy_units = 0, entropy_fractions = 0, likeliest = 0;

  /// The number of integers of the struct, for an all-reduce by sum.
  static constexpr std::size_t words = 6;

  FSDP_INLINE_ANYWHERE LossSum& operator+=(const LossSum& other) {
    units += other.units;
    fractions += other.fractions;
    non_finite += other.non_finite;
    units += fractions >> 32;
    fractions &= 0xffffffff;
    entropy_units += other.entropy_units;
    entropy_fractions += other.entropy_fractions;
    likeliest += other.likeliest;
    entropy_units += entropy_fractions >> 32;
    entropy_fractions &= 0xffffffff;
    return *this;
  }
  /// Returns the sum, rounded once to double; NaN if non_finite > 0.
  FSDP_INLINE_ANYWHERE double value() const {
    if (non_finite > 0) return std::numeric_limits<double>::quiet_NaN();
    return value_of(units, fractions);
  }
  /// Returns the sum of the entropies, rounded once to double.
  FSDP_INLINE_ANYWHERE double entropy() const { return value_of(entropy_units, entropy_fractions); }

  FSDP_INLINE_ANYWHERE static double value_of(std::int64_t of_units, std::int64_t of_fractions) {
    const std::int64_t all_units = of_units + (of_fractions >> 32), rest = of_fractions & 0xffffffff;
    return static_cast<double>(all_units) * 0x1p-20 + static_cast<double>(rest) * 0x1p-52;
  }
};
static_assert(std::is_standard_layout_v<LossSum> && sizeof(LossSum) == LossSum::words * sizeof(std::int64_t));

/// Adds losses[0..n) to `sum`. Both must be in memory of the stream's device.
void add_losses(Stream& stream, LossSum& sum, const float* losses, std::size_t n);

}  // namespace fsdp::kernels
