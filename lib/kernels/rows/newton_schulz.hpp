// Row bodies of the elementwise parts of a Newton-Schulz step.
#pragma once

#include "kernels/exact_sum.hpp"
#include "kernels/rows/pointwise.hpp"

namespace fsdp::kernels {

/// Row r of the square matrices I, x and x2: x2 = a * I + b * x + c * x2.
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

/// x /= max(sqrt(squares), least).
struct DivideByNorm {
  float* x;
  std::size_t n;
  const ExactSum* squares;
  double least;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const double norm = square_root(squares->value());
    const auto factor = static_cast<float>(1 / (norm > least ? norm : least));
    each_of_block(
        lanes, b, n, [=](float& x_i) FSDP_LANE { x_i *= factor; }, x);
  }
};

}  // namespace fsdp::kernels
