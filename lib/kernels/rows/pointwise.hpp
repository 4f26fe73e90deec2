// Bodies without sums. Those on flat arrays take "row" b to be elements [b * flat_block, ...) of n.
#pragma once

#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Elements per "row" of a flat array: 16 kB, a share of the first-level cache.
inline constexpr std::size_t flat_block = 4096;

struct AddBias {
  float* x;
  const float* bias;
  std::size_t C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float* row = x + r * C;
    const float* b = bias;
    lanes.each(C, [=](std::size_t c) FSDP_LANE { row[c] += b[c]; });
  }
};

struct AddResidual {
  float* y;
  const float *x, *branch, *bias;
  std::size_t C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float* out = y + r * C;
    const float *a = x + r * C, *d = branch + r * C, *b = bias;
    if (b)
      lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = a[c] + (d[c] + b[c]); });
    else
      lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = a[c] + d[c]; });
  }
};

inline constexpr float gelu_scale = 0.7978845608f;  // sqrt(2/pi)
inline constexpr float gelu_cubic = 0.044715f;

template <Gelu form>
FSDP_INLINE float gelu(float x) {
  if constexpr (form == Gelu::tanh)
    return x * sigmoid(2.0f * gelu_scale * x * multiply_add(gelu_cubic * x, x, 1.0f));  // (1 + tanh u) / 2 = sigmoid 2u
  else
    return 0.5f * x * (1.0f + erf(x * 0.7071067812f));
}

template <Gelu form>
FSDP_INLINE float gelu_slope(float x) {
  if constexpr (form == Gelu::tanh) {
    const float x2 = x * x;
    const float s = sigmoid(2.0f * gelu_scale * x * multiply_add(gelu_cubic, x2, 1.0f));
    return s + x * s * (1.0f - s) * (2.0f * gelu_scale) * multiply_add(3.0f * gelu_cubic, x2, 1.0f);
  } else {
    const float density = 0.3989422804f * exp(-0.5f * x * x);  // standard normal
    return multiply_add(x, density, 0.5f + 0.5f * erf(x * 0.7071067812f));
  }
}

template <Gelu form>
struct BiasGelu {
  float *out, *pre;
  const float* bias;
  std::size_t F;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    float *to = out + r * F, *row = pre + r * F;
    const float* b = bias;
    if (b)
      lanes.each(F, [=](std::size_t c) FSDP_LANE {
        const float value = row[c] + b[c];
        row[c] = value;
        to[c] = gelu<form>(value);
      });
    else
      lanes.each(F, [=](std::size_t c) FSDP_LANE { to[c] = gelu<form>(row[c]); });
  }
};

template <Gelu form>
struct GeluBackward {
  float* d_pre;
  const float *d_out, *pre;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * flat_block, count = n - begin < flat_block ? n - begin : flat_block;
    float* to = d_pre + begin;
    const float *d = d_out + begin, *x = pre + begin;
    lanes.each(count, [=](std::size_t i) FSDP_LANE { to[i] = d[i] * gelu_slope<form>(x[i]); });
  }
};

struct SwigluForward {
  float* out;
  const float *gate, *up;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * flat_block, count = n - begin < flat_block ? n - begin : flat_block;
    float* to = out + begin;
    const float *g = gate + begin, *u = up + begin;
    lanes.each(count, [=](std::size_t i) FSDP_LANE { to[i] = g[i] * sigmoid(g[i]) * u[i]; });
  }
};

struct SwigluBackward {
  float *d_gate, *d_up;
  const float *d_out, *gate, *up;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * flat_block, count = n - begin < flat_block ? n - begin : flat_block;
    float *dg = d_gate + begin, *du = d_up + begin;
    const float *d = d_out + begin, *g = gate + begin, *u = up + begin;
    lanes.each(count, [=](std::size_t i) FSDP_LANE {
      const float s = sigmoid(g[i]), silu = g[i] * s, slope = s + silu * (1.0f - s);
      const float d_gate_i = d[i] * u[i] * slope,
                  d_up_i = d[i] * silu;  // both before either is stored: one may overwrite d_out
      dg[i] = d_gate_i;
      du[i] = d_up_i;
    });
  }
};

struct Fill {
  float* x;
  std::size_t n;
  float value;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * flat_block, count = n - begin < flat_block ? n - begin : flat_block;
    float* to = x + begin;
    const float with = value;
    lanes.each(count, [=](std::size_t i) FSDP_LANE { to[i] = with; });
  }
};

}  // namespace fsdp::kernels
