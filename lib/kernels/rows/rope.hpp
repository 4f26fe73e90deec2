// Row body of rotary position embeddings.
#pragma once

#include "base/element.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r = (b, t) is token t of sequence b. The token's position is positions[r], or t if `positions` is null.
template <class E>
struct RopeBody {
  E* x;
  const float* cos_sin;
  std::size_t table_stride;
  std::size_t T, heads, D, rotated, stride;
  float sign;  // -1 rotates back
  const std::int32_t* positions = nullptr;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const std::size_t half = rotated / 2;
    const float *cosines = cos_sin + (positions ? static_cast<std::size_t>(positions[r]) : r % T) * table_stride,
                *sines = cosines + half;
    const float direction = sign;
    E* const row = x + r * stride;
    lanes.grid(
        heads, half,
        [=](E& first, E& second, float c, float sine) FSDP_LANE {
          const float a = first, b = second, s = direction * sine;
          first = E(a * c - b * s);
          second = E(b * c + a * s);
        },
        RowsOf{row, D}, RowsOf{row + half, D}, RowsOf{cosines, std::size_t{0}}, RowsOf{sines, std::size_t{0}});
  }
};

}  // namespace fsdp::kernels
