// A layer made only of operations of fsdp::ops, y = x + (silu(x gate^T) * (x up^T)) down^T (Shazeer 2020), with F inner
// numbers: it works in all types, and on GPUs.
#pragma once

#include <cmath>

#include <fsdp/fsdp.hpp>

class SwigluLayer final : public fsdp::Layer {
 public:
  SwigluLayer(std::size_t width, std::size_t inner) : C(width), F(inner) {}
  std::vector<fsdp::LayerParameter> parameters() const override {
    return {{"gate", {F, C}, fsdp::normal(1 / std::sqrt(static_cast<float>(C)))},
            {"up", {F, C}, fsdp::normal(1 / std::sqrt(static_cast<float>(C)))},
            {"down", {C, F}, fsdp::normal(1 / std::sqrt(static_cast<float>(F)))}};
  }
  std::size_t inputs() const override { return C; }
  std::size_t outputs() const override { return C; }
  std::size_t saved() const override { return 3 * F; }  // gate, up, and their product
  std::size_t scratch() const override { return 2 * F; }
  bool works_in(fsdp::DType) const override { return true; }
  bool works_on_gpu() const override { return true; }

  void forward(const fsdp::ForwardPass& pass) const override {
    using namespace fsdp::ops;
    const fsdp::Tensor gate = pass.saved.part(0, F), up = pass.saved.part(F, F), product = pass.saved.part(2 * F, F);
    linear(pass, pass.x, pass.parameter(0), {}, gate);
    linear(pass, pass.x, pass.parameter(1), {}, up);
    swiglu(pass, gate, up, product);
    copy(pass, pass.y, pass.x);
    matmul(pass, product, Transpose::no, pass.parameter(2), Transpose::yes, pass.y, Out::add);
  }

  void backward(const fsdp::BackwardPass& pass) const override {
    using namespace fsdp::ops;
    const fsdp::Tensor gate = pass.saved.part(0, F), up = pass.saved.part(F, F), product = pass.saved.part(2 * F, F);
    const fsdp::Tensor d_gate = pass.scratch.part(0, F), d_up = pass.scratch.part(F, F);
    linear_backward(pass, product, pass.parameter(2), pass.dy, d_gate, pass.gradient(2), {});
    swiglu_backward(pass, gate, up, d_gate, d_gate, d_up);
    copy(pass, pass.dx, pass.dy);
    linear_backward(pass, pass.x, pass.parameter(0), d_gate, pass.dx, pass.gradient(0), {}, Out::add);
    linear_backward(pass, pass.x, pass.parameter(1), d_up, pass.dx, pass.gradient(1), {}, Out::add);
  }

 private:
  const std::size_t C, F;
};
