// A layer that libfsdp does not have: a short causal convolution over the positions of a sequence, each column by itself, with
// a gate, as the mixers of Mamba and Hyena begin.
//
//   g[t] = sigmoid(gate x[t])                        [C]
//   c[t] = sum over k < K of filter[k] x[t - k]      [C], element by element; what is before the sequence counts as 0
//   y[t] = x[t] + g[t] c[t]                          [C]
//
// The convolution is a loop of its own, for CPUs; all else is made of operations of the library.
#pragma once

#include <algorithm>
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
  std::size_t saved() const override { return 2 * C; }    // what the sigmoid is given, and c
  std::size_t scratch() const override { return 2 * C; }  // g, or the gradient of c; and that of what the sigmoid is given
  bool works_in(fsdp::DType) const override { return true; }

  void forward(const fsdp::ForwardPass& pass) const override {
    const fsdp::Tensor before = pass.saved.part(0, C), c = pass.saved.part(C, C), g = pass.scratch.part(0, C);
    const fsdp::Tensor filter = pass.parameter(1);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t i = 0; i < C; ++i) {
        float sum = 0;
        for (std::size_t k = 0; k < K && k <= r % pass.T; ++k) sum += filter.get(k, i) * pass.x.get(r - k, i);
        c.set(r, i, sum);
      }
    fsdp::ops::linear(pass, pass.x, pass.parameter(0), {}, before);
    fsdp::ops::sigmoid(pass, before, g);
    fsdp::ops::copy(pass, pass.y, pass.x);
    fsdp::ops::multiply(pass, pass.y, g, c, fsdp::ops::Out::add);
  }

  void backward(const fsdp::BackwardPass& pass) const override {
    const fsdp::Tensor before = pass.saved.part(0, C), c = pass.saved.part(C, C);
    const fsdp::Tensor dc = pass.scratch.part(0, C), d_before = pass.scratch.part(C, C);
    const fsdp::Tensor filter = pass.parameter(1), d_filter = pass.gradient(1);
    fsdp::ops::sigmoid(pass, before, dc);
    fsdp::ops::multiply(pass, dc, dc, pass.dy);
    fsdp::ops::multiply(pass, d_before, c, pass.dy);
    fsdp::ops::sigmoid_backward(pass, before, d_before, d_before);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t i = 0; i < C; ++i) {
        float sum = pass.dy.get(r, i);
        for (std::size_t k = 0; k < K && r % pass.T + k < pass.T; ++k) sum += filter.get(k, i) * dc.get(r + k, i);
        pass.dx.set(r, i, sum);
        for (std::size_t k = 0; k < K && k <= r % pass.T && d_filter; ++k)
          d_filter.row(k)[i] += dc.get(r, i) * pass.x.get(r - k, i);
      }
    fsdp::ops::linear_backward(pass, pass.x, pass.parameter(0), d_before, pass.dx, pass.gradient(0), {}, fsdp::ops::Out::add);
  }

 private:
  const std::size_t C, K;
};
