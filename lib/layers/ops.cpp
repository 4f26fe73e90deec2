#include "layers/ops.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/philox.hpp"
#include "comm/communicator.hpp"
#include "kernels/kernels.hpp"
#include "kernels/layers.hpp"
#include "layers/gathering.hpp"

namespace fsdp {

namespace {

Tensor matrix_of(const LayerParameter& parameter, void* data, DType type) {
  const std::size_t rows = parameter.shape.size() > 1 ? parameter.shape.front() : 1, columns = numel(parameter.shape) / rows;
  return {data, rows, columns, columns, type};
}

const LayerParameter& parameter_of(const Pass& pass, std::size_t i) {
  if (i >= pass.parameters.size())
    throw UserError(format("parameter {} does not exist (the layer declares {}); correct the number, or parameters()", i,
                           pass.parameters.empty() ? "none" : format("0 to {}", pass.parameters.size() - 1)));
  return pass.parameters[i];
}

Tensor gradient_of(const Pass& pass, float* const* gradients, std::size_t i) {
  const LayerParameter& parameter = parameter_of(pass, i);
  const bool has_gradient = gradients && parameter.kind == LayerParameter::Kind::trained;
  return matrix_of(parameter, has_gradient ? gradients[pass.indices[i]] : nullptr, DType::f32);
}

}  // namespace

Tensor Pass::parameter(std::size_t i) const {
  const LayerParameter& parameter = parameter_of(*this, i);
  const bool is_state = parameter.kind == LayerParameter::Kind::state;
  return matrix_of(parameter, const_cast<void*>(weights[indices[i]]), is_state ? DType::f32 : type);
}

Tensor Pass::gather(const Tensor& mine) const {
  if (!trains || !gathering)
    throw UserError(
        "gather() is called in a pass that does not train, or by a loss (only layers gather, in updates); test training() "
        "first, and use sees_all_ranks() in a loss");
  Gathering& all = *gathering;
  const std::size_t n = mine.numel();
  all.done += n;
  if (all.done > all.declared)
    throw UserError(format("the pass gathers {} numbers (gathers() returns {}); correct gathers()", all.done, all.declared));
  float* const to = all.memory + (all.done - n) * ranks;
  if (all.group)
    all.group->all_gather(*stream, mine.floats(), to, n, DType::f32);
  else
    stream->copy(to, mine.floats(), n * sizeof(float));
  return {to, ranks, n, n};
}

Tensor Pass::sequence(const Tensor& tensor, std::size_t b) const {
  if (b >= B || tensor.rows != rows())
    throw UserError(
        format("sequence {} of a tensor {} does not exist (the batch has {} sequences of {} positions); correct the "
               "layer",
               b, to_string(tensor), B, T));
  return tensor.rows_from(b * T, T);
}
Tensor BackwardPass::gradient(std::size_t i) const { return gradient_of(*this, gradients, i); }
Tensor BackwardPass::next(std::size_t i) const {
  const LayerParameter& parameter = parameter_of(*this, i);
  if (parameter.kind != LayerParameter::Kind::state)
    throw UserError(format("next({}) is of '{}', which is no state; use gradient({})", i, parameter.name, i));
  const bool moves = trains && gradients && gradients[indices[i]];
  return matrix_of(parameter, moves ? nexts + next_at[indices[i]] : nullptr, DType::f32);
}
Tensor LossPass::gradient(std::size_t i) const { return gradient_of(*this, gradients, i); }

namespace ops {

namespace {

kernels::Gelu form_of(Gelu formula) { return formula == Gelu::tanh ? kernels::Gelu::tanh : kernels::Gelu::erf; }
kernels::Write write_of(Out write) { return write == Out::add ? kernels::Write::add : kernels::Write::overwrite; }
kernels::Trans trans_of(Transpose transpose) { return transpose == Transpose::yes ? kernels::Trans::yes : kernels::Trans::no; }

template <class E>
E* in(const Tensor& tensor) {
  return static_cast<E*>(tensor.data);
}

bool same_size(const Tensor& a, const Tensor& b) { return a.rows == b.rows && a.columns == b.columns; }

/// An argument of an operation: the tensor, and the parameter's name in ops.hpp.
struct Operand {
  const char* name;
  const Tensor& tensor;
};

/// Throws UserError unless `ok` is true. `wanted` describes the operands that `operation` takes; `given` are those of the call.
void require(bool ok, const char* operation, const char* wanted, std::initializer_list<Operand> given) {
  if (ok) return;
  std::string all;
  for (const Operand& operand : given)
    all += format("{}{} {}", all.empty() ? "" : "; ", operand.name, to_string(operand.tensor));
  throw UserError(format("{} is given {} (it takes {}); correct the layer", operation, all, wanted));
}

/// Requires dense tensors of the same size and type.
void require_alike(const char* operation, std::initializer_list<Operand> given) {
  const Tensor& first = given.begin()->tensor;
  const auto is_like_first = [&](const Operand& operand) {
    const Tensor& tensor = operand.tensor;
    return tensor && tensor.is_dense() && same_size(tensor, first) && tensor.type == first.type;
  };
  require(std::all_of(given.begin(), given.end(), is_like_first), operation, "dense tensors of one size and type", given);
}

/// Returns true if `vector` is a tensor [1, columns of x] of type `type`.
bool is_vector(const Tensor& vector, const Tensor& x, DType type) {
  return vector && vector.rows == 1 && vector.columns == x.columns && vector.type == type;
}

/// Throws UserError if x has too many columns: sums over its rows are gradients of a parameter, and the size of pass.sums comes
/// from the parameters.
void require_room_for_sums(const Pass& pass, const char* operation, const Tensor& x) {
  if (x.columns > pass.most_columns)
    throw UserError(
        format("{} adds up {} columns (memory for this is reserved by the parameters of the model, which have at most {}); "
               "correct the layer, or parameters()",
               operation, x.columns, pass.most_columns));
}

/// Returns true if `gradient` is an fp32 tensor [1, columns of x], or none.
bool is_gradient(const Tensor& gradient, const Tensor& x) { return !gradient || is_vector(gradient, x, DType::f32); }

/// Returns true if `stats` has the form of the statistics of a norm: `of_row` fp32 numbers for each row of x.
bool is_stats(const Tensor& stats, const Tensor& x, std::size_t of_row) {
  return stats && stats.is_dense() && stats.type == DType::f32 && stats.numel() == of_row * x.rows;
}

}  // namespace

void matmul(const Pass& pass, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& out,
            Out write) {
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  const std::size_t k = ta ? a.rows : a.columns;
  require(a && b && out && a.type == b.type && (out.type == a.type || out.type == DType::f32) &&
              (ta ? a.columns : a.rows) == out.rows && (tb ? b.rows : b.columns) == out.columns &&
              (tb ? b.columns : b.rows) == k,
          "matmul", "op(a) [m, k] and op(b) [k, n] of one type, and out [m, n] of it or in fp32",
          {{ta ? "a to be transposed" : "a", a}, {tb ? "b to be transposed" : "b", b}, {"out", out}});
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
  require(is_vector(bias, y, y.type) && y.is_dense(), "linear", "a bias [1, out] of y's type, and a dense y",
          {{"bias", bias}, {"y", y}});
  with_element(y.type, [&]<class E>() { kernels::add_bias(*pass.stream, in<E>(y), in<const E>(bias), y.rows, y.columns); });
}

void linear_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                     const Tensor& d_weight, const Tensor& d_bias, Out write_dx) {
  if (d_weight) matmul(pass, dy, Transpose::yes, x, Transpose::no, d_weight, Out::add);
  if (d_bias) {
    require(is_gradient(d_bias, dy), "linear_backward", "d_bias [1, out] in fp32", {{"d_bias", d_bias}, {"dy", dy}});
    require_room_for_sums(pass, "linear_backward", dy);
    with_element(dy.type, [&]<class E>() {
      kernels::bias_backward(*pass.stream, in<float>(d_bias), in<const E>(dy), dy.rows, dy.columns, dy.stride,
                             kernels::Write::add, pass.sums);
    });
  }
  if (dx) matmul(pass, dy, Transpose::no, weight, Transpose::no, dx, write_dx);
}

void copy(const Pass& pass, const Tensor& to, const Tensor& from) {
  require(to && from && same_size(to, from) && to.type == from.type, "copy", "tensors of one size and type",
          {{"to", to}, {"from", from}});
  if (to.is_dense() && from.is_dense()) return pass.stream->copy(to.data, from.data, to.numel() * size_of(to.type));
  with_element(to.type, [&]<class E>() {
    kernels::copy_columns(*pass.stream, in<E>(to), to.stride, in<const E>(from), from.stride, to.rows, to.columns);
  });
}

void fill_zero(const Pass& pass, const Tensor& to) {
  require(to && to.is_dense(), "fill_zero", "a dense tensor", {{"to", to}});
  with_element(to.type, [&]<class E>() { kernels::fill_zero(*pass.stream, in<E>(to), to.numel()); });
}

void convert(const Pass& pass, const Tensor& to, const Tensor& from) {
  if (to.type == from.type) return copy(pass, to, from);
  require(to && from && to.is_dense() && from.is_dense() && same_size(to, from) &&
              (to.type == DType::f32 || from.type == DType::f32),
          "convert", "dense tensors of one size, one of them in fp32", {{"to", to}, {"from", from}});
  if (from.type == DType::f32)
    with_element(to.type, [&]<class E>() { kernels::convert(*pass.stream, in<E>(to), in<const float>(from), to.numel()); });
  else
    with_element(from.type, [&]<class E>() { kernels::convert(*pass.stream, in<float>(to), in<const E>(from), to.numel()); });
}

void add(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b) {
  require_alike("add", {{"y", y}, {"a", a}, {"b", b}});
  with_element(y.type, [&]<class E>() {
    kernels::add_residual(*pass.stream, in<E>(y), in<const E>(a), in<const E>(b), nullptr, y.rows, y.columns);
  });
}

void multiply(const Pass& pass, const Tensor& y, const Tensor& a, const Tensor& b, Out write) {
  require_alike("multiply", {{"y", y}, {"a", a}, {"b", b}});
  with_element(y.type, [&]<class E>() {
    kernels::multiply(*pass.stream, in<E>(y), in<const E>(a), in<const E>(b), y.numel(), write_of(write));
  });
}

void relu(const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike("relu", {{"y", y}, {"x", x}});
  with_element(x.type, [&]<class E>() {  // without a bias, the kernel does not change x
    kernels::bias_relu_forward(*pass.stream, in<E>(y), in<E>(x), nullptr, x.rows, x.columns);
  });
}

void relu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("relu_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  with_element(x.type,
               [&]<class E>() { kernels::relu_backward(*pass.stream, in<E>(dx), in<const E>(dy), in<const E>(x), x.numel()); });
}

void gelu(const Pass& pass, const Tensor& x, const Tensor& y, Gelu formula) {
  require_alike("gelu", {{"y", y}, {"x", x}});
  with_element(x.type, [&]<class E>() {
    kernels::bias_gelu_forward(*pass.stream, form_of(formula), in<E>(y), in<E>(x), nullptr, x.rows, x.columns);
  });
}

void gelu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx, Gelu formula) {
  require_alike("gelu_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  with_element(x.type, [&]<class E>() {
    kernels::gelu_backward(*pass.stream, form_of(formula), in<E>(dx), in<const E>(dy), in<const E>(x), x.numel());
  });
}

void sigmoid(const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike("sigmoid", {{"y", y}, {"x", x}});
  with_element(x.type,
               [&]<class E>() { kernels::bias_sigmoid_forward(*pass.stream, in<E>(y), in<E>(x), nullptr, x.rows, x.columns); });
}

void sigmoid_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("sigmoid_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  with_element(x.type, [&]<class E>() {
    kernels::sigmoid_backward(*pass.stream, in<E>(dx), in<const E>(dy), in<const E>(x), x.numel());
  });
}

void silu(const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike("silu", {{"y", y}, {"x", x}});
  with_element(x.type, [&]<class E>() { kernels::silu_forward(*pass.stream, in<E>(y), in<E>(x), x.rows, x.columns); });
}

void silu_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("silu_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  with_element(x.type,
               [&]<class E>() { kernels::silu_backward(*pass.stream, in<E>(dx), in<const E>(dy), in<const E>(x), x.numel()); });
}

void tanh(const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike("tanh", {{"y", y}, {"x", x}});
  with_element(x.type, [&]<class E>() { kernels::tanh_forward(*pass.stream, in<E>(y), in<E>(x), x.rows, x.columns); });
}

void tanh_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("tanh_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  with_element(x.type,
               [&]<class E>() { kernels::tanh_backward(*pass.stream, in<E>(dx), in<const E>(dy), in<const E>(x), x.numel()); });
}

namespace {

void softmax_of(const char* operation, kernels::SoftmaxForm form, const Pass& pass, const Tensor& x, const Tensor& y) {
  require_alike(operation, {{"y", y}, {"x", x}});
  with_element(x.type,
               [&]<class E>() { kernels::softmax_forward(*pass.stream, form, in<E>(y), in<const E>(x), x.rows, x.columns); });
}

void gradient_of_softmax(const char* operation, kernels::SoftmaxForm form, const Pass& pass, const Tensor& x, const Tensor& dy,
                         const Tensor& dx) {
  require_alike(operation, {{"dx", dx}, {"x", x}, {"dy", dy}});
  with_element(x.type, [&]<class E>() {
    kernels::softmax_backward(*pass.stream, form, in<E>(dx), in<const E>(dy), in<const E>(x), x.rows, x.columns);
  });
}

}  // namespace

void softmax(const Pass& pass, const Tensor& x, const Tensor& y) {
  softmax_of("softmax", kernels::SoftmaxForm::probabilities, pass, x, y);
}
void softmax_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  gradient_of_softmax("softmax_backward", kernels::SoftmaxForm::probabilities, pass, x, dy, dx);
}
void log_softmax(const Pass& pass, const Tensor& x, const Tensor& y) {
  softmax_of("log_softmax", kernels::SoftmaxForm::logarithms, pass, x, y);
}
void log_softmax_backward(const Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  gradient_of_softmax("log_softmax_backward", kernels::SoftmaxForm::logarithms, pass, x, dy, dx);
}

void dropout(const Pass& pass, double p, const Tensor& x, const Tensor& y, std::uint32_t number) {
  if (!(p >= 0 && p < 1)) throw UserError(format("dropout has p = {} (it is from 0 to below 1); correct it", p));
  require_alike("dropout", {{"y", y}, {"x", x}});
  require(x.rows == pass.rows(), "dropout", "a row for each row of the batch", {{"x", x}});
  // The key of the mask is a hash of the place, the number and the seed; no other masks have 1 in this key.
  const auto words = philox({static_cast<std::uint32_t>(pass.place), static_cast<std::uint32_t>(pass.place >> 32), number,
                             static_cast<std::uint32_t>(RandomSite::dropout)},
                            {static_cast<std::uint32_t>(pass.seed), 1});
  const kernels::DropoutMask mask =
      kernels::dropout_mask(static_cast<float>(p), words[0], words[1], pass.update, pass.first_sequence, pass.T);
  if (pass.update == 0 || mask.dropped == 0) {
    if (y.data != x.data) copy(pass, y, x);
    return;
  }
  with_element(x.type, [&]<class E>() { kernels::dropout(*pass.stream, in<E>(y), in<const E>(x), x.rows, x.columns, mask); });
}

void add_positions(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& y) {
  require_alike("add_positions", {{"y", y}, {"x", x}});
  require(weight && weight.is_dense() && weight.type == x.type && weight.columns == x.columns && weight.rows >= pass.T &&
              x.rows == pass.rows(),
          "add_positions", "x with a row for each row of the batch, and weight [positions, columns] of x's type",
          {{"x", x}, {"weight", weight}});
  with_element(x.type, [&]<class E>() {
    kernels::add_positions(*pass.stream, in<E>(y), in<const E>(x), in<const E>(weight), x.rows, pass.T, x.columns);
  });
}

void add_positions_backward(const Pass& pass, const Tensor& dy, const Tensor& d_weight) {
  if (!d_weight) return;
  require(dy && dy.is_dense() && d_weight.is_dense() && d_weight.type == DType::f32 && d_weight.columns == dy.columns &&
              d_weight.rows >= pass.T && dy.rows == pass.rows(),
          "add_positions_backward", "dy with a row for each row of the batch, and d_weight [positions, columns] in fp32",
          {{"dy", dy}, {"d_weight", d_weight}});
  with_element(dy.type, [&]<class E>() {
    kernels::position_backward(*pass.stream, d_weight.floats(), in<const E>(dy), pass.B, pass.T, dy.columns, d_weight.rows,
                               kernels::Write::add);
  });
}

void transpose(const Pass& pass, const Tensor& x, std::size_t m, const Tensor& y) {
  require_alike("transpose", {{"y", y}, {"x", x}});
  require(m > 0 && x.columns % m == 0 && x.data != y.data, "transpose",
          "rows that are matrices with m rows, and a y that is not x", {{"x", x}});
  with_element(x.type,
               [&]<class E>() { kernels::transpose_rows(*pass.stream, in<E>(y), in<const E>(x), x.rows, m, x.columns / m); });
}

namespace {

/// Requires tensors of the same size and type, which need not be dense. Returns true if all are dense.
bool require_one_form(const char* operation, std::initializer_list<Operand> given) {
  const Tensor& first = given.begin()->tensor;
  const auto is_like_first = [&](const Operand& operand) {
    return operand.tensor && same_size(operand.tensor, first) && operand.tensor.type == first.type;
  };
  require(std::all_of(given.begin(), given.end(), is_like_first), operation, "tensors of one size and type", given);
  return std::all_of(given.begin(), given.end(), [](const Operand& operand) { return operand.tensor.is_dense(); });
}

template <class E>
kernels::StridedRows<E> rows_in(const Tensor& tensor) {
  return {in<E>(tensor), tensor.stride};
}

}  // namespace

void swiglu(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& y) {
  const bool is_dense = require_one_form("swiglu", {{"y", y}, {"gate", gate}, {"up", up}});
  with_element(y.type, [&]<class E>() {
    if (is_dense)
      kernels::swiglu_forward(*pass.stream, in<E>(y), in<const E>(gate), in<const E>(up), y.numel());
    else
      kernels::swiglu_rows_forward<E>(*pass.stream, rows_in<E>(y), rows_in<const E>(gate), rows_in<const E>(up), y.rows,
                                      y.columns);
  });
}

void swiglu_backward(const Pass& pass, const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& d_gate,
                     const Tensor& d_up) {
  const bool is_dense =
      require_one_form("swiglu_backward", {{"dy", dy}, {"gate", gate}, {"up", up}, {"d_gate", d_gate}, {"d_up", d_up}});
  with_element(dy.type, [&]<class E>() {
    if (is_dense)
      kernels::swiglu_backward(*pass.stream, in<E>(d_gate), in<E>(d_up), in<const E>(dy), in<const E>(gate), in<const E>(up),
                               dy.numel());
    else
      kernels::swiglu_rows_backward<E>(*pass.stream, rows_in<E>(d_gate), rows_in<E>(d_up), rows_in<const E>(dy),
                                       rows_in<const E>(gate), rows_in<const E>(up), dy.rows, dy.columns);
  });
}

void layer_norm(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                const Tensor& stats) {
  require_alike("layer_norm", {{"y", y}, {"x", x}});
  require(is_vector(weight, x, x.type) && is_vector(bias, x, x.type) && is_stats(stats, x, 2), "layer_norm",
          "weight and bias [1, columns] of x's type, and stats [R, 2] in fp32",
          {{"x", x}, {"weight", weight}, {"bias", bias}, {"stats", stats}});
  with_element(x.type, [&]<class E>() {
    kernels::layer_norm_forward(*pass.stream, in<E>(y), stats.floats(), in<const E>(x), in<const E>(weight), in<const E>(bias),
                                x.rows, x.columns, eps);
  });
}

void layer_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                         const Tensor& dx, const Tensor& d_weight, const Tensor& d_bias, Out write_dx) {
  require_alike("layer_norm_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  require(is_vector(weight, x, x.type) && is_stats(stats, x, 2) && is_gradient(d_weight, x) && is_gradient(d_bias, x),
          "layer_norm_backward", "weight [1, columns] of x's type, stats [R, 2], d_weight and d_bias [1, columns] in fp32",
          {{"x", x}, {"weight", weight}, {"stats", stats}, {"d_weight", d_weight}, {"d_bias", d_bias}});
  require_room_for_sums(pass, "layer_norm_backward", x);
  with_element(x.type, [&]<class E>() {
    kernels::layer_norm_backward(*pass.stream, in<E>(dx), write_of(write_dx), d_weight ? d_weight.floats() : pass.unwanted,
                                 d_bias ? d_bias.floats() : pass.unwanted + x.columns, kernels::Write::add, in<const E>(dy),
                                 in<const E>(x), stats.floats(), in<const E>(weight), x.rows, x.columns, pass.sums);
  });
}

void rms_norm(const Pass& pass, const Tensor& x, const Tensor& weight, float eps, const Tensor& y, const Tensor& stats) {
  require_alike("rms_norm", {{"y", y}, {"x", x}});
  require(is_vector(weight, x, x.type) && is_stats(stats, x, 1), "rms_norm",
          "weight [1, columns] of x's type, and stats [R, 1] in fp32", {{"x", x}, {"weight", weight}, {"stats", stats}});
  with_element(x.type, [&]<class E>() {
    kernels::rms_norm_forward(*pass.stream, in<E>(y), stats.floats(), in<const E>(x), in<const E>(weight), x.rows, x.columns,
                              eps);
  });
}

void rms_norm_backward(const Pass& pass, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& dy,
                       const Tensor& dx, const Tensor& d_weight, Out write_dx) {
  require_alike("rms_norm_backward", {{"dx", dx}, {"x", x}, {"dy", dy}});
  require(is_vector(weight, x, x.type) && is_stats(stats, x, 1) && is_gradient(d_weight, x), "rms_norm_backward",
          "weight [1, columns] of x's type, stats [R, 1] and d_weight [1, columns] in fp32",
          {{"x", x}, {"weight", weight}, {"stats", stats}, {"d_weight", d_weight}});
  require_room_for_sums(pass, "rms_norm_backward", x);
  with_element(x.type, [&]<class E>() {
    kernels::rms_norm_backward(*pass.stream, in<E>(dx), write_of(write_dx), d_weight ? d_weight.floats() : pass.unwanted,
                               kernels::Write::add, in<const E>(dy), in<const E>(x), stats.floats(), in<const E>(weight),
                               x.rows, x.columns, pass.sums);
  });
}

}  // namespace ops
}  // namespace fsdp
