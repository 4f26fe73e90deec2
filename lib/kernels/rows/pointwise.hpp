// Bodies without sums. Those on flat arrays take "row" b to be elements [b * flat_block, ...) of n.
#pragma once

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Elements per "row" of a flat array: 16 kB, a share of the first-level cache.
inline constexpr std::size_t flat_block = 4096;

/// How many "rows" an array of n has.
FSDP_INLINE_ANYWHERE constexpr std::size_t flat_blocks(std::size_t n) { return (n + flat_block - 1) / flat_block; }

/// f(i) for the elements i of "row" b of an array of n.
template <class Lanes, class F>
FSDP_INLINE void each_of_block(Lanes lanes, std::size_t b, std::size_t n, F f) {
  const std::size_t begin = b * flat_block;
  lanes.each(n - begin < flat_block ? n - begin : flat_block, [=](std::size_t i) FSDP_LANE { f(begin + i); });
}

template <class E>
struct AddBias {
  E* x;
  const E* bias;
  std::size_t C;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* row = x + r * C;
    const E* b = bias;
    lanes.each(C, [=](std::size_t c) FSDP_LANE { row[c] = E(row[c] + b[c]); });
  }
};

template <class E>
struct AddResidual {
  E* y;
  const E *x, *branch, *bias;
  std::size_t C;
  DropoutMask mask;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = y + r * C;
    const E *a = x + r * C, *d = branch + r * C, *b = bias;
    if (mask.dropped && b)
      each_with_dropout(lanes, mask, r, C, [=](std::size_t c, float m) FSDP_LANE { out[c] = E(a[c] + (d[c] + b[c]) * m); });
    else if (mask.dropped)
      each_with_dropout(lanes, mask, r, C, [=](std::size_t c, float m) FSDP_LANE { out[c] = E(a[c] + d[c] * m); });
    else if (b)
      lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = E(d[c] + (a[c] + b[c])); });
    else
      lanes.each(C, [=](std::size_t c) FSDP_LANE { out[c] = E(d[c] + a[c]); });
  }
};

/// Piece b of an array.
struct CopyPieces {
  float* to;
  const float* from;
  std::size_t n, piece;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * piece, count = n - begin < piece ? n - begin : piece;
    float* out = to + begin;
    const float* in = from + begin;
    lanes.copy(count, out, in);
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

/// An activation: its value, and what becomes of the gradient of its result.
template <Gelu form>
struct GeluActivation {
  FSDP_INLINE static float value(float x) { return gelu<form>(x); }
  FSDP_INLINE static float backward(float d, float x) { return d * gelu_slope<form>(x); }
};
struct ReluActivation {
  FSDP_INLINE static float value(float x) { return x > 0.0f ? x : 0.0f; }
  FSDP_INLINE static float backward(float d, float x) { return x > 0.0f ? d : 0.0f; }
};

template <class Activation, class E>
struct BiasActivation {
  E *out, *pre;
  const E* bias;
  std::size_t F;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E *to = out + r * F, *row = pre + r * F;
    const E* b = bias;
    if (b)
      lanes.each(F, [=](std::size_t c) FSDP_LANE {
        const float value = E(row[c] + b[c]);  // as it is stored: backward and refilling find the same
        row[c] = E(value);
        to[c] = E(Activation::value(value));
      });
    else
      lanes.each(F, [=](std::size_t c) FSDP_LANE { to[c] = E(Activation::value(row[c])); });
  }
};

template <class Activation, class E>
struct ActivationBackward {
  E* d_pre;
  const E *d_out, *pre;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n,
                  [k = *this](std::size_t i) FSDP_LANE { k.d_pre[i] = E(Activation::backward(k.d_out[i], k.pre[i])); });
  }
};

template <class E>
struct SwigluForward {
  E* out;
  const E *gate, *up;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n,
                  [k = *this](std::size_t i) FSDP_LANE { k.out[i] = E(k.gate[i] * sigmoid(k.gate[i]) * k.up[i]); });
  }
};

template <class E>
struct SwigluBackward {
  E *d_gate, *d_up;
  const E *d_out, *gate, *up;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE {
      const float s = sigmoid(k.gate[i]), silu = k.gate[i] * s, slope = s + silu * (1.0f - s);
      const float d_gate_i = k.d_out[i] * k.up[i] * slope,
                  d_up_i = k.d_out[i] * silu;  // both before either is stored: one may overwrite d_out
      k.d_gate[i] = E(d_gate_i);
      k.d_up[i] = E(d_up_i);
    });
  }
};

template <class E>
struct Fill {
  E* x;
  std::size_t n;
  E value;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE { k.x[i] = k.value; });
  }
};

/// No element beyond -most and most.
struct ClipValues {
  float* x;
  std::size_t n;
  float most;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE {
      const float v = k.x[i];
      k.x[i] = v > k.most ? k.most : v < -k.most ? -k.most : v;
    });
  }
};

/// to = from in another element type; they are not the same memory.
template <class To, class From>
struct Convert {
  To* to;
  const From* from;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(lanes, b, n, [k = *this](std::size_t i) FSDP_LANE { k.to[i] = To(static_cast<float>(k.from[i])); });
  }
};

}  // namespace fsdp::kernels
