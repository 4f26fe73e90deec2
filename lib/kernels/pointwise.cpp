#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

std::size_t blocks(std::size_t n) { return (n + flat_block - 1) / flat_block; }

}  // namespace

void add_bias(Stream& stream, float* x, const float* bias, std::size_t R, std::size_t C) {
  launch(stream, AddBias{x, bias, C}, R);
}

void add_residual(Stream& stream, float* y, const float* x, const float* branch, const float* bias, std::size_t R,
                  std::size_t C, const DropoutMask& mask) {
  launch(stream, AddResidual{y, x, branch, bias, C, mask}, R);
}

void bias_gelu_forward(Stream& stream, Gelu form, float* out, float* pre, const float* bias, std::size_t R, std::size_t F) {
  if (form == Gelu::tanh)
    launch(stream, BiasGelu<Gelu::tanh>{out, pre, bias, F}, R);
  else
    launch(stream, BiasGelu<Gelu::erf>{out, pre, bias, F}, R);
}

void gelu_backward(Stream& stream, Gelu form, float* d_pre, const float* d_out, const float* pre, std::size_t n) {
  if (form == Gelu::tanh)
    launch(stream, GeluBackward<Gelu::tanh>{d_pre, d_out, pre, n}, blocks(n));
  else
    launch(stream, GeluBackward<Gelu::erf>{d_pre, d_out, pre, n}, blocks(n));
}

void swiglu_forward(Stream& stream, float* out, const float* gate, const float* up, std::size_t n) {
  launch(stream, SwigluForward{out, gate, up, n}, blocks(n));
}

void swiglu_backward(Stream& stream, float* d_gate, float* d_up, const float* d_out, const float* gate, const float* up,
                     std::size_t n) {
  launch(stream, SwigluBackward{d_gate, d_up, d_out, gate, up, n}, blocks(n));
}

void fill_constant(Stream& stream, float* x, std::size_t n, float value) { launch(stream, Fill{x, n, value}, blocks(n)); }

void copy(Stream& stream, float* to, const float* from, std::size_t n) {
  constexpr std::size_t piece = std::size_t{1} << 22;
  launch(stream, CopyPieces{to, from, n, piece}, (n + piece - 1) / piece);
}

void fill_zero(Stream& stream, float* x, std::size_t n) { fill_constant(stream, x, n, 0); }

}  // namespace fsdp::kernels
