#include "api/ops.hpp"

#include "base/element.hpp"
#include "base/error.hpp"
#include "kernels/kernels.hpp"

namespace fsdp {

namespace {

Tensor matrix_of(const LayerParameter& parameter, void* data, DType type) {
  const std::size_t rows = parameter.shape.size() > 1 ? parameter.shape.front() : 1, columns = numel(parameter.shape) / rows;
  return {data, rows, columns, columns, type};
}

Tensor gradient_of(const Pass& pass, float* const* gradients, std::size_t i) {
  return matrix_of(pass.parameters[i], gradients[i], DType::f32);
}

}  // namespace

Tensor Pass::parameter(std::size_t i) const { return matrix_of(parameters[i], const_cast<void*>(weights[i]), type); }
Tensor BackwardPass::gradient(std::size_t i) const { return gradient_of(*this, gradients, i); }
Tensor LossPass::gradient(std::size_t i) const { return gradient_of(*this, gradients, i); }

namespace ops {

namespace {

kernels::Write write_of(Out write) { return write == Out::add ? kernels::Write::add : kernels::Write::overwrite; }
kernels::Trans trans_of(Transpose transpose) { return transpose == Transpose::yes ? kernels::Trans::yes : kernels::Trans::no; }

template <class E>
E* in(const Tensor& tensor) {
  return static_cast<E*>(tensor.data);
}

bool same_size(const Tensor& a, const Tensor& b) { return a.rows == b.rows && a.columns == b.columns; }

/// Dense tensors of one size and type.
template <class... Others>
void require_alike(const char* what, const Tensor& first, const Others&... others) {
  expect(first && first.is_dense() &&
             ((others && others.is_dense() && same_size(first, others) && others.type == first.type) && ...),
         what);
}

/// A vector for the columns of x.
void require_vector(const char* what, const Tensor& vector, const Tensor& x, DType type) {
  expect(vector && vector.numel() == x.columns && vector.type == type, what);
}

}  // namespace

void matmul(const Pass& pass, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& out,
            Out write) {
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  const std::size_t k = ta ? a.rows : a.columns;
  expect(a && b && out && a.type == b.type && (out.type == a.type || out.type == DType::f32) &&
             (ta ? a.columns : a.rows) == out.rows && (tb ? b.rows : b.columns) == out.columns &&
             (tb ? b.columns : b.rows) == k,
         "matmul: [m,k] and [k,n] give [m,n], of one type");
  with_element(a.type, [&]<class E>() {
    const auto multiply = [&]<class Out>(Out* to) {
      kernels::gemm(*pass.stream, trans_of(transpose_a), trans_of(transpose_b), out.rows, out.columns, k, in<const E>(a),
                    a.stride, in<const E>(b), b.stride, to, out.stride, write_of(write));
    };
    if (out.type == a.type)
      multiply(in<E>(out));
    else
      multiply(in<float>(out));
  });
}

void linear(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  matmul(pass, x, Transpose::no, weight, Transpose::yes, y);
  if (!bias) return;
  require_vector("linear: bias[out]", bias, y, y.type);
  expect(y.is_dense(), "linear: a bias is added to dense rows");
  with_element(y.type, [&]<class E>() { kernels::add_bias(*pass.stream, in<E>(y), in<const E>(bias), y.rows, y.columns); });
}

void linear_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                     const Tensor& d_weight, const Tensor& d_bias, Out write_dx) {
  if (d_weight) matmul(pass, dy, Transpose::yes, x, Transpose::no, d_weight, Out::add);
  if (d_bias) {
    require_vector("linear: d_bias[out] in fp32", d_bias, dy, DType::f32);
    with_element(dy.type, [&]<class E>() {
      kernels::bias_backward(*pass.stream, in<float>(d_bias), in<const E>(dy), dy.rows, dy.columns, dy.stride,
                             kernels::Write::add, pass.sums);
    });
  }
  if (dx) matmul(pass, dy, Transpose::no, weight, Transpose::no, dx, write_dx);
}

void copy(const Pass& pass, const Tensor& to, const Tensor& from) {
  require_alike("copy: dense, of one size and type", to, from);
  pass.stream->copy(to.data, from.data, to.numel() * size_of(to.type));
}

void add(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b) {
  require_alike("add: dense, of one size and type", y, a, b);
  with_element(y.type, [&]<class E>() {
    kernels::add_residual(*pass.stream, in<E>(y), in<const E>(a), in<const E>(b), nullptr, y.rows, y.columns);
  });
}

void relu(const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike("relu: dense, of one size and type", y, x);
  with_element(x.type, [&]<class E>() {  // without a bias, what is given stays as it is
    kernels::bias_relu_forward(*pass.stream, in<E>(y), in<E>(x), nullptr, x.rows, x.columns);
  });
}

void relu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("relu_backward: dense, of one size and type", dx, x, dy);
  with_element(x.type,
               [&]<class E>() { kernels::relu_backward(*pass.stream, in<E>(dx), in<const E>(dy), in<const E>(x), x.numel()); });
}

void gelu(const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike("gelu: dense, of one size and type", y, x);
  with_element(x.type, [&]<class E>() {
    kernels::bias_gelu_forward(*pass.stream, kernels::Gelu::tanh, in<E>(y), in<E>(x), nullptr, x.rows, x.columns);
  });
}

void gelu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("gelu_backward: dense, of one size and type", dx, x, dy);
  with_element(x.type, [&]<class E>() {
    kernels::gelu_backward(*pass.stream, kernels::Gelu::tanh, in<E>(dx), in<const E>(dy), in<const E>(x), x.numel());
  });
}

void swiglu(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& y) {
  require_alike("swiglu: dense, of one size and type", y, gate, up);
  with_element(y.type, [&]<class E>() {
    kernels::swiglu_forward(*pass.stream, in<E>(y), in<const E>(gate), in<const E>(up), y.numel());
  });
}

void swiglu_backward(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& d_gate,
                     const Tensor& d_up) {
  require_alike("swiglu_backward: dense, of one size and type", dy, gate, up, d_gate, d_up);
  with_element(dy.type, [&]<class E>() {
    kernels::swiglu_backward(*pass.stream, in<E>(d_gate), in<E>(d_up), in<const E>(dy), in<const E>(gate), in<const E>(up),
                             dy.numel());
  });
}

void layer_norm(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                const Tensor& stats) {
  require_alike("layer_norm: dense, of one size and type", y, x);
  require_vector("layer_norm: weight[columns]", weight, x, x.type);
  require_vector("layer_norm: bias[columns]", bias, x, x.type);
  expect(stats.numel() == 2 * x.rows, "layer_norm: stats[R,2]");
  with_element(x.type, [&]<class E>() {
    kernels::layer_norm_forward(*pass.stream, in<E>(y), stats.floats(), in<const E>(x), in<const E>(weight), in<const E>(bias),
                                x.rows, x.columns, eps);
  });
}

void layer_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                         const Tensor& dx, const Tensor& d_weight, const Tensor& d_bias, Out write_dx) {
  require_alike("layer_norm_backward: dense, of one size and type", dx, x, dy);
  expect(stats.numel() == 2 * x.rows, "layer_norm_backward: stats[R,2]");
  with_element(x.type, [&]<class E>() {
    kernels::layer_norm_backward(*pass.stream, in<E>(dx), write_of(write_dx), d_weight ? d_weight.floats() : pass.unwanted,
                                 d_bias ? d_bias.floats() : pass.unwanted + x.columns, kernels::Write::add, in<const E>(dy),
                                 in<const E>(x), stats.floats(), in<const E>(weight), x.rows, x.columns, pass.sums);
  });
}

void rms_norm(const Pass& pass, const Tensor& x, const Tensor& weight, float eps, const Tensor& y, const Tensor& stats) {
  require_alike("rms_norm: dense, of one size and type", y, x);
  require_vector("rms_norm: weight[columns]", weight, x, x.type);
  expect(stats.numel() == x.rows, "rms_norm: stats[R,1]");
  with_element(x.type, [&]<class E>() {
    kernels::rms_norm_forward(*pass.stream, in<E>(y), stats.floats(), in<const E>(x), in<const E>(weight), x.rows, x.columns,
                              eps);
  });
}

void rms_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                       const Tensor& dx, const Tensor& d_weight, Out write_dx) {
  require_alike("rms_norm_backward: dense, of one size and type", dx, x, dy);
  expect(stats.numel() == x.rows, "rms_norm_backward: stats[R,1]");
  with_element(x.type, [&]<class E>() {
    kernels::rms_norm_backward(*pass.stream, in<E>(dx), write_of(write_dx), d_weight ? d_weight.floats() : pass.unwanted,
                               kernels::Write::add, in<const E>(dy), in<const E>(x), stats.floats(), in<const E>(weight),
                               x.rows, x.columns, pass.sums);
  });
}

}  // namespace ops
}  // namespace fsdp
