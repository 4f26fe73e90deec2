// Launches biases, residuals, activations, copies and conversions.
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void add_bias(Stream& stream, E* x, const E* bias, std::size_t R, std::size_t C) {
  launch(stream, AddBias<E>{x, bias, C}, R);
}

template <class E>
void add_residual(Stream& stream, E* y, const E* x, const E* branch, Nullable<E> bias, std::size_t R, std::size_t C,
                  const DropoutMask& mask) {
  launch(stream, AddResidual<E>{y, x, branch, bias, C, mask}, R);
}

template <class E>
void bias_gelu_forward(Stream& stream, Gelu form, E* out, E* pre, Nullable<E> bias, std::size_t R, std::size_t F) {
  if (form == Gelu::tanh)
    launch(stream, BiasActivation<GeluActivation<Gelu::tanh>, E>{out, pre, bias, F}, R);
  else
    launch(stream, BiasActivation<GeluActivation<Gelu::erf>, E>{out, pre, bias, F}, R);
}

template <class E>
void gelu_backward(Stream& stream, Gelu form, E* d_pre, const E* d_out, const E* pre, std::size_t n) {
  if (form == Gelu::tanh)
    launch(stream, ActivationBackward<GeluActivation<Gelu::tanh>, E>{d_pre, d_out, pre, n}, flat_blocks(n));
  else
    launch(stream, ActivationBackward<GeluActivation<Gelu::erf>, E>{d_pre, d_out, pre, n}, flat_blocks(n));
}

template <class E>
void bias_relu_forward(Stream& stream, E* out, E* pre, Nullable<E> bias, std::size_t R, std::size_t F) {
  launch(stream, BiasActivation<ReluActivation, E>{out, pre, bias, F}, R);
}

template <class E>
void relu_backward(Stream& stream, E* d_pre, const E* d_out, const E* pre, std::size_t n) {
  launch(stream, ActivationBackward<ReluActivation, E>{d_pre, d_out, pre, n}, flat_blocks(n));
}

template <class E>
void bias_sigmoid_forward(Stream& stream, E* out, E* pre, Nullable<E> bias, std::size_t R, std::size_t F) {
  launch(stream, BiasActivation<SigmoidActivation, E>{out, pre, bias, F}, R);
}

template <class E>
void sigmoid_backward(Stream& stream, E* d_pre, const E* d_out, const E* pre, std::size_t n) {
  launch(stream, ActivationBackward<SigmoidActivation, E>{d_pre, d_out, pre, n}, flat_blocks(n));
}

template <class E>
void multiply(Stream& stream, E* out, const E* a, const E* b, std::size_t n, Write write) {
  launch(stream, Multiply<E>{out, a, b, n, write == Write::add}, flat_blocks(n));
}

template <class E>
void swiglu_forward(Stream& stream, E* out, const E* gate, const E* up, std::size_t n) {
  launch(stream, SwigluForward<E>{out, gate, up, n}, flat_blocks(n));
}

template <class E>
void swiglu_backward(Stream& stream, E* d_gate, E* d_up, const E* d_out, const E* gate, const E* up, std::size_t n) {
  launch(stream, SwigluBackward<E>{d_gate, d_up, d_out, gate, up, n}, flat_blocks(n));
}

void fill_constant(Stream& stream, float* x, std::size_t n, float value) {
  launch(stream, Fill<float>{x, n, value}, flat_blocks(n));
}

void add(Stream& stream, float* to, const float* from, std::size_t n) { launch(stream, Add{to, from, n}, flat_blocks(n)); }

void add_scaled(Stream& stream, float* to, const float* from, std::size_t n, float factor) {
  launch(stream, AddScaled{to, from, n, factor}, flat_blocks(n));
}

void clip_values(Stream& stream, float* x, std::size_t n, float most) {
  launch(stream, ClipValues{x, n, most}, flat_blocks(n));
}

void copy(Stream& stream, float* to, const float* from, std::size_t n) {
  constexpr std::size_t piece = std::size_t{1} << 22;
  launch(stream, CopyPieces{to, from, n, piece}, (n + piece - 1) / piece);
}

template <class E>
void fill_zero(Stream& stream, E* x, std::size_t n) {
  launch(stream, Fill<E>{x, n, E(0.0f)}, flat_blocks(n));
}

template <class E>
void copy_columns(Stream& stream, E* to, std::size_t to_stride, const E* from, std::size_t from_stride, std::size_t R,
                  std::size_t C) {
  launch(stream, CopyColumns<E>{to, to_stride, from, from_stride, C}, R);
}

template <class To, class From>
void convert(Stream& stream, To* to, const From* from, std::size_t n) {
  if constexpr (std::is_same_v<To, From>) {
    if (to == from) return;
  }
  launch(stream, Convert<To, From>{to, from, n}, flat_blocks(n));
}
template void convert(Stream&, float*, const float*, std::size_t);
template void convert(Stream&, bf16*, const float*, std::size_t);
template void convert(Stream&, f16*, const float*, std::size_t);
template void convert(Stream&, float*, const bf16*, std::size_t);
template void convert(Stream&, float*, const f16*, std::size_t);

#define FSDP_INSTANTIATE(E)                                                                                               \
  template void add_bias(Stream&, E*, const E*, std::size_t, std::size_t);                                                \
  template void add_residual(Stream&, E*, const E*, const E*, Nullable<E>, std::size_t, std::size_t, const DropoutMask&); \
  template void bias_gelu_forward(Stream&, Gelu, E*, E*, Nullable<E>, std::size_t, std::size_t);                          \
  template void gelu_backward(Stream&, Gelu, E*, const E*, const E*, std::size_t);                                        \
  template void bias_relu_forward(Stream&, E*, E*, Nullable<E>, std::size_t, std::size_t);                                \
  template void relu_backward(Stream&, E*, const E*, const E*, std::size_t);                                              \
  template void bias_sigmoid_forward(Stream&, E*, E*, Nullable<E>, std::size_t, std::size_t);                             \
  template void sigmoid_backward(Stream&, E*, const E*, const E*, std::size_t);                                           \
  template void multiply(Stream&, E*, const E*, const E*, std::size_t, Write);                                            \
  template void swiglu_forward(Stream&, E*, const E*, const E*, std::size_t);                                             \
  template void swiglu_backward(Stream&, E*, E*, const E*, const E*, const E*, std::size_t);                              \
  template void fill_zero(Stream&, E*, std::size_t);                                                                      \
  template void copy_columns(Stream&, E*, std::size_t, const E*, std::size_t, std::size_t, std::size_t);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
