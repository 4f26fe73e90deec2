// Dropout (Srivastava et al. 2014) with masks that are never stored: one Philox counter decides for eight elements of a row,
// with 16 random bits for each. The masks are computed in integers, and each element is multiplied once, so that every
// instruction set and CUDA give the same bits.
#pragma once

#include <array>
#include <cstdint>

#include "base/element.hpp"
#include "base/philox.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// The dropout factors of eight elements: 0, or 1 / (1 - rate).
struct DropoutFactors {
  std::array<std::uint32_t, 4> words;
  std::int32_t dropped;
  float scale;

  /// `group` is the index of the eight elements in their row, and `position` the index of the row in sequence `b` of this call.
  /// `head` distinguishes several masks of a sequence.
  FSDP_INLINE DropoutFactors(const DropoutMask& mask, std::size_t group, std::size_t position, std::size_t head, std::size_t b)
      : words(philox({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(head),
                      mask.first_sequence + static_cast<std::uint32_t>(b)},
                     {mask.key[0], mask.key[1]})),
        dropped(mask.dropped),
        scale(mask.scale) {}

  FSDP_INLINE float operator[](std::size_t k) const {
    const std::uint32_t word = words[k / 2];
    return static_cast<std::int32_t>(k % 2 == 0 ? word & 0xffffu : word >> 16) >= dropped ? scale : 0.0f;
  }
};

/// Calls f(c, factor) for every element c of row r. Counter g decides for elements g, g + groups, ..., g + 7 groups, so that
/// adjacent lanes access adjacent elements.
template <class Lanes, class F>
FSDP_INLINE void each_with_dropout(Lanes lanes, const DropoutMask& of_rows, std::size_t r, std::size_t C, F f) {
  const DropoutMask mask = of_rows;
  const std::size_t row = mask.first_row + r, groups = (C + 7) / 8, position = row % mask.T, b = row / mask.T;
  lanes.each(groups, [=](std::size_t g) FSDP_LANE {
    const DropoutFactors factors(mask, g, position, 0, b);
    FSDP_UNROLL
    for (std::size_t k = 0; k < 8; ++k)
      if (g + k * groups < C) f(g + k * groups, factors[k]);
  });
}

/// Dropout of row r of R. y may be x.
template <class E>
struct DropoutBody {
  E* y;
  const E* x;
  std::size_t C;
  DropoutMask mask;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = y + r * C;
    const E* in = x + r * C;
    each_with_dropout(lanes, mask, r, C, [=](std::size_t c, float factor) FSDP_LANE { out[c] = E(in[c] * factor); });
  }
};

}  // namespace fsdp::kernels
