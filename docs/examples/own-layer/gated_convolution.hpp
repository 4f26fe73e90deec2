// A layer that libfsdp does not have: a short causal convolution over the positions of a sequence, each column by itself, with
// a gate, as the mixers of Mamba and Hyena begin.
//
//   g[t] = sigmoid(gate x[t])                        [C]
//   c[t] = sum over k < K of filter[k] x[t - k]      [C], element by element; what is before the sequence counts as 0
//   y[t] = x[t] + g[t] c[t]                          [C]
#pragma once

#include <cmath>

#include <fsdp/fsdp.hpp>

class GatedConvolution final : public fsdp::Layer {
 public:
  GatedConvolution(std::size_t width, std::size_t length) : C(width), K(length) {}

  std::vector<fsdp::LayerParameter> parameters() const override {
    return {{"gate", {C, C}, fsdp::normal(1 / std::sqrt(static_cast<float>(C)))},
            {"filter", {K, C}, fsdp::normal(1 / std::sqrt(static_cast<float>(K)))}};
  }
  std::size_t inputs() const override { return C; }
  std::size_t outputs() const override { return C; }
  std::size_t saved() const override { return 2 * C; }    // g and c
  std::size_t scratch() const override { return 2 * C; }  // the gradients of what the sigmoid is given, and of c

  void forward(const fsdp::ForwardPass& pass) const override {
    const fsdp::Tensor g = pass.saved.part(0, C), c = pass.saved.part(C, C), filter = pass.parameter(1);
    fsdp::ops::matmul(pass, pass.x, fsdp::ops::Transpose::no, pass.parameter(0), fsdp::ops::Transpose::yes, g);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t i = 0; i < C; ++i) {
        g.row(r)[i] = 1 / (1 + std::exp(-g.row(r)[i]));
        c.row(r)[i] = 0;
        for (std::size_t k = 0; k < reach(pass, r); ++k) c.row(r)[i] += filter.row(k)[i] * pass.x.row(r - k)[i];
        pass.y.row(r)[i] = pass.x.row(r)[i] + g.row(r)[i] * c.row(r)[i];
      }
  }

  void backward(const fsdp::BackwardPass& pass) const override {
    const fsdp::Tensor g = pass.saved.part(0, C), c = pass.saved.part(C, C), filter = pass.parameter(1);
    const fsdp::Tensor d_gate = pass.scratch.part(0, C), dc = pass.scratch.part(C, C), d_filter = pass.gradient(1);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t i = 0; i < C; ++i) {
        const float dy = pass.dy.row(r)[i], gate = g.row(r)[i];
        dc.row(r)[i] = dy * gate;
        d_gate.row(r)[i] = dy * c.row(r)[i] * gate * (1 - gate);
        pass.dx.row(r)[i] = dy;
      }
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t k = 0; k < reach(pass, r); ++k)
        for (std::size_t i = 0; i < C; ++i) {
          pass.dx.row(r - k)[i] += filter.row(k)[i] * dc.row(r)[i];
          if (d_filter) d_filter.row(k)[i] += dc.row(r)[i] * pass.x.row(r - k)[i];
        }
    fsdp::ops::linear_backward(pass, pass.x, pass.parameter(0), d_gate, pass.dx, pass.gradient(0), {}, fsdp::ops::Out::add);
  }

 private:
  /// How many positions row r sees: itself and those before it in its sequence.
  std::size_t reach(const fsdp::Pass& pass, std::size_t r) const { return std::min(K, r % pass.T + 1); }

  const std::size_t C, K;
};
