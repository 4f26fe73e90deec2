// Dropout (Srivastava et al. 2014) with masks that are never stored: a Philox counter decides eight elements of a row, 16 bits
// each. Integers, and one product per element: the same bits on every instruction set and on CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "base/element.hpp"
#include "base/philox.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// The factors of eight elements: 0 or 1 / (share that is kept).
struct DropoutFactors {
  std::array<std::uint32_t, 4> words;
  std::int32_t dropped;
  float scale;

  /// `group` of the elements, `position` of the row in sequence `b` of this call; `head` where a sequence has several masks.
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

/// f(c, factor) for every element of row r. Counter g decides elements g, g + groups, ..., g + 7 groups: lanes beside each
/// other touch elements beside each other.
template <class Lanes, class F>
FSDP_INLINE void each_with_dropout(Lanes lanes, const DropoutMask& of_rows, std::size_t r, std::size_t C, F f) {
  const DropoutMask mask = of_rows;
  const std::size_t groups = (C + 7) / 8, position = r % mask.T, b = r / mask.T;
  lanes.each(groups, [=](std::size_t g) FSDP_LANE {
    const DropoutFactors factors(mask, g, position, 0, b);
    FSDP_UNROLL
    for (std::size_t k = 0; k < 8; ++k)
      if (g + k * groups < C) f(g + k * groups, factors[k]);
  });
}

/// Row r of R. y may be x.
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
