// Row body of the rotary positions.
#pragma once

#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r = (b, t).
struct RopeBody {
  float* x;
  const float* cos_sin;
  std::size_t T, heads, D, stride;
  float sign;  // -1 rotates back

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t half = D / 2;
    const float *cosines = cos_sin + r % T * D, *sines = cosines + half;
    const float direction = sign;
    for (std::size_t h = 0; h < heads; ++h) {
      float *first = x + r * stride + h * D, *second = first + half;
      lanes.each(half, [=](std::size_t i) FSDP_LANE {
        const float a = first[i], b = second[i], c = cosines[i], s = direction * sines[i];
        first[i] = a * c - b * s;
        second[i] = b * c + a * s;
      });
    }
  }
};

}  // namespace fsdp::kernels
