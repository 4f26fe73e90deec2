// Body of AdamW over a flat shard.
#pragma once

#include "kernels/rows/lanes.hpp"
#include "kernels/rows/pointwise.hpp"

namespace fsdp::kernels {

struct AdamWBody {
  // m and v of an unused embedding row decay into denormals, which cost ten times as much: they count as 0.
  static constexpr bool flush_denormals = true;
  float *parameter, *m, *v;
  const float* gradient;
  std::size_t n;
  float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_sqrt_correction2, eps, gradient_scale;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE {
      const float g = k.gradient[i] * k.gradient_scale;
      const float m1 = k.beta1 * k.m[i] + k.one_minus_beta1 * g;
      const float v1 = k.beta2 * k.v[i] + k.one_minus_beta2 * g * g;
      k.m[i] = m1;
      k.v[i] = v1;
      k.parameter[i] = k.parameter[i] * k.decay - k.step_size * m1 / (square_root(v1) * k.inverse_sqrt_correction2 + k.eps);
    });
  }
};

}  // namespace fsdp::kernels
