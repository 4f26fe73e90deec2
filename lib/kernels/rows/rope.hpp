// Row body of the rotary positions.
#pragma once

#include "base/element.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r = (b, t).
template <class E>
struct RopeBody {
  E* x;
  const float* cos_sin;
  std::size_t T, heads, D, stride;
  float sign;  // -1 rotates back

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t half = D / 2;
    const float *cosines = cos_sin + r % T * D, *sines = cosines + half;
    const float direction = sign;
    for (std::size_t h = 0; h < heads; ++h) {
      E *first = x + r * stride + h * D, *second = first + half;
      lanes.each(half, [=](std::size_t i) FSDP_LANE {
        const float a = first[i], b = second[i], c = cosines[i], s = direction * sines[i];
        first[i] = E(a * c - b * s);
        second[i] = E(b * c + a * s);
      });
    }
  }
};

}  // namespace fsdp::kernels
