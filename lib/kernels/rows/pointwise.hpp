// Row bodies without sums. A flat array is divided into "rows" of flat_block elements; the last row may be shorter.
#pragma once

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// The number of elements per "row" of a flat array: 16 kB of floats, which fit into the first-level cache.
inline constexpr std::size_t flat_block = 4096;

/// The number of "rows" of an array of n elements.
FSDP_INLINE_ANYWHERE constexpr std::size_t flat_blocks(std::size_t n) { return (n + flat_block - 1) / flat_block; }

/// Calls f(i) for the elements i of "row" b of an array of n elements.
template <class Lanes, class F>
FSDP_INLINE void each_of_block(Lanes lanes, std::size_t b, std::size_t n, F f) {
  const std::size_t begin = b * flat_block;
  lanes.each(n - begin < flat_block ? n - begin : flat_block, [=](std::size_t i) FSDP_LANE { f(begin + i); });
}
/// Calls f(x[i], ...) for the elements of "row" b of arrays of n elements.
template <class Lanes, class F, Array... A>
FSDP_INLINE void each_of_block(Lanes lanes, std::size_t b, std::size_t n, F f, A... arrays) {
  const std::size_t begin = b * flat_block;
  lanes.each(n - begin < flat_block ? n - begin : flat_block, f, arrays + begin...);
}

template <class E>
struct AddBias {
  E* x;
  const E* bias;
  std::size_t C;

  std::size_t width() const { return C; }
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* row = x + r * C;
    const E* b = bias;
    lanes.each(
        C, [](E& x_c, float b_c) FSDP_LANE { x_c = E(x_c + b_c); }, row, b);
  }
};

template <class E>
struct AddResidual {
  E* y;
  const E *x, *branch, *bias;
  std::size_t C;
  DropoutMask mask;

  std::size_t width() const { return C; }
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = y + r * C;
    const E *a = x + r * C, *d = branch + r * C, *b = bias;
    if (mask.dropped && b)
      each_with_dropout(lanes, mask, r, C, [=](std::size_t c, float m) FSDP_LANE { out[c] = E(a[c] + (d[c] + b[c]) * m); });
    else if (mask.dropped)
      each_with_dropout(lanes, mask, r, C, [=](std::size_t c, float m) FSDP_LANE { out[c] = E(a[c] + d[c] * m); });
    else if (b)
      lanes.each(
          C, [](E& y_c, float x_c, float d_c, float b_c) FSDP_LANE { y_c = E(d_c + (x_c + b_c)); }, writes(out), a, d, b);
    else
      lanes.each(
          C, [](E& y_c, float x_c, float d_c) FSDP_LANE { y_c = E(d_c + x_c); }, writes(out), a, d);
  }
};

/// Copies piece b of an array.
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

/// Copies the numbers of a row between matrices whose rows begin `to_stride` and `from_stride` elements apart.
template <class E>
struct CopyColumns {
  E* to;
  std::size_t to_stride;
  const E* from;
  std::size_t from_stride, columns;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* out = to + r * to_stride;
    const E* in = from + r * from_stride;
    lanes.each(
        columns, [](E& y, float x) FSDP_LANE { y = E(x); }, writes(out), in);
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

/// An activation function. value() computes it, and backward() computes the gradient of the input from the gradient of the
/// result.
template <Gelu form>
struct GeluActivation {
  FSDP_INLINE static float value(float x) { return gelu<form>(x); }
  FSDP_INLINE static float backward(float d, float x) { return d * gelu_slope<form>(x); }
};
struct ReluActivation {
  FSDP_INLINE static float value(float x) { return x > 0.0f ? x : 0.0f; }
  FSDP_INLINE static float backward(float d, float x) { return x > 0.0f ? d : 0.0f; }
};
struct SigmoidActivation {
  FSDP_INLINE static float value(float x) { return sigmoid(x); }
  FSDP_INLINE static float backward(float d, float x) {
    const float s = sigmoid(x);
    return d * s * (1.0f - s);
  }
};

template <class Activation, class E>
struct BiasActivation {
  E *out, *pre;
  const E* bias;
  std::size_t F;

  std::size_t width() const { return F; }
  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E *to = out + r * F, *row = pre + r * F;
    const E* b = bias;
    if (b)
      lanes.each(
          F,
          [](E& out_c, E& pre_c, float b_c) FSDP_LANE {
            const float value = E(pre_c + b_c);  // rounded as stored: backward and recomputation use the same value
            pre_c = E(value);
            out_c = E(Activation::value(value));
          },
          writes(to), row, b);
    else
      lanes.each(
          F, [](E& out_c, float pre_c) FSDP_LANE { out_c = E(Activation::value(pre_c)); }, writes(to),
          static_cast<const E*>(row));
  }
};

template <class Activation, class E>
struct ActivationBackward {
  E* d_pre;
  const E *d_out, *pre;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [](E& d, float d_out_i, float pre_i) FSDP_LANE { d = E(Activation::backward(d_out_i, pre_i)); },
        writes(d_pre), d_out, pre);
  }
};

template <class E>
struct SwigluForward {
  E* out;
  const E *gate, *up;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [](E& out_i, float gate_i, float up_i) FSDP_LANE { out_i = E(gate_i * sigmoid(gate_i) * up_i); },
        writes(out), gate, up);
  }
};

template <class E>
struct SwigluBackward {
  E *d_gate, *d_up;
  const E *d_out, *gate, *up;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n,
        [](E& d_gate_i, E& d_up_i, float d_i, float gate_i, float up_i) FSDP_LANE {
          const float s = sigmoid(gate_i), silu = gate_i * s, slope = s + silu * (1.0f - s);
          d_gate_i = E(d_i * up_i * slope);
          d_up_i = E(d_i * silu);
        },
        writes(d_gate), writes(d_up), d_out, gate, up);
  }
};

/// out (=, +=) a * b.
template <class E>
struct Multiply {
  E* out;
  const E *a, *b;
  std::size_t n;
  bool adds;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t block) const {
    if (adds)
      each_of_block(
          lanes, block, n, [](E& out_i, float a_i, float b_i) FSDP_LANE { out_i = E(out_i + a_i * b_i); }, out, a, b);
    else
      each_of_block(
          lanes, block, n, [](E& out_i, float a_i, float b_i) FSDP_LANE { out_i = E(a_i * b_i); }, writes(out), a, b);
  }
};

template <class E>
struct Fill {
  E* x;
  std::size_t n;
  E value;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [to = value](E& x_i) FSDP_LANE { x_i = to; }, writes(x));
  }
};

/// to += from.
struct Add {
  float* to;
  const float* from;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [](float& to_i, float from_i) FSDP_LANE { to_i += from_i; }, to, from);
  }
};

/// to += factor * from.
struct AddScaled {
  float* to;
  const float* from;
  std::size_t n;
  float factor;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const float by = factor;
    each_of_block(
        lanes, b, n, [=](float& to_i, float from_i) FSDP_LANE { to_i += by * from_i; }, to, from);
  }
};

/// Limits each element to [-most, most].
struct ClipValues {
  float* x;
  std::size_t n;
  float most;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [limit = most](float& x_i) FSDP_LANE { x_i = x_i > limit    ? limit
                                                                  : x_i < -limit ? -limit
                                                                                 : x_i; }, x);
  }
};

/// to = from, converted to another element type; the two must not be the same memory.
template <class To, class From>
struct Convert {
  To* to;
  const From* from;
  std::size_t n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    each_of_block(
        lanes, b, n, [](To& to_i, From from_i) FSDP_LANE { to_i = To(static_cast<float>(from_i)); }, writes(to), from);
  }
};

}  // namespace fsdp::kernels
