// Bodies of the elementwise parts of a Newton-Schulz step, and of the momentum whose direction it makes orthogonal.
#pragma once

#include "kernels/rows/optimizer.hpp"

namespace fsdp::kernels {

/// For ElementUpdate with the direction in the parameter's place: moves the momentum towards the gradient, and takes Nesterov's
/// form of it. The two are mixed, as torch.optim.Muon does, not added.
struct MuonMomentumRule {
  static constexpr int states = 1;
  float momentum, one_minus_momentum;
  FSDP_INLINE float operator()(float, float g, float* s) const {
    s[0] += one_minus_momentum * (g - s[0]);
    return g + momentum * (s[0] - g);
  }
};

/// Row r of the square matrix x2 = a I + b x + c x2.
struct SquarePolynomial {
  float* x2;
  const float* x;
  std::size_t n;
  float a, b, c;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const SquarePolynomial k = *this;
    float* out = x2 + r * n;
    const float* in = x + r * n;
    lanes.each(n, [=](std::size_t i) FSDP_LANE { out[i] = k.b * in[i] + k.c * out[i] + (i == r ? k.a : 0.0f); });
  }
};

/// x *= factor.
struct Scale {
  float* x;
  std::size_t n;
  float factor;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE { k.x[i] *= k.factor; });
  }
};

}  // namespace fsdp::kernels
