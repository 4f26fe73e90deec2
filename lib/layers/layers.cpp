#include "layers/layers.hpp"

#include <cmath>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/kernels.hpp"
#include "layers/composition.hpp"
#include "layers/ops.hpp"
#include "layers/place.hpp"

namespace fsdp {

void require_size(const char* function, const char* what, std::size_t size) {
  if (size == 0 || size > std::size_t{1} << 30)
    throw UserError(format("{}() has {} {} (it must be at least 1{}); correct it", function, what, as_given(size),
                           size == 0 ? "" : ", and at most 2^30"));
}

namespace {

using ops::Out;
using ops::Transpose;

class BuiltLayer : public Layer {
 public:
  bool works_in(DType) const final { return true; }
  bool works_on_gpu() const final { return true; }
  bool looks_ahead() const final { return false; }
};

class LinearLayer final : public BuiltLayer {
 public:
  LinearLayer(std::size_t in, std::size_t out, bool bias, float standard_deviation)
      : in_(in), out_(out), bias_(bias), standard_deviation_(standard_deviation) {
    if (in == 0 || out == 0)
      throw UserError(
          format("linear({}, {}) is empty (both sizes must be at least 1); correct them", as_given(in), as_given(out)));
    require_size("linear", "in", in), require_size("linear", "out", out);
    if (!(standard_deviation >= 0))
      throw UserError(format("linear() has standard_deviation {} (it must be at least 0); correct it", standard_deviation));
  }
  std::vector<LayerParameter> parameters() const override {
    const float deviation = standard_deviation_ > 0 ? standard_deviation_ : 1 / std::sqrt(static_cast<float>(in_));
    std::vector<LayerParameter> all = {{"weight", {out_, in_}, normal(deviation)}};
    if (bias_) all.push_back({"bias", {out_}, constant(0)});
    return all;
  }
  std::size_t inputs() const override { return in_; }
  std::size_t outputs() const override { return out_; }
  void forward(const ForwardPass& pass) const override {
    ops::linear(pass, pass.x, pass.parameter(0), bias_ ? pass.parameter(1) : Tensor(), pass.y);
  }
  void backward(const BackwardPass& pass) const override {
    ops::linear_backward(pass, pass.x, pass.parameter(0), pass.dy, pass.dx, pass.gradient(0),
                         bias_ ? pass.gradient(1) : Tensor());
  }

 private:
  std::size_t in_, out_;
  bool bias_;
  float standard_deviation_;
};

/// A layer with `width` outputs, and as many inputs unless it overrides inputs().
class PlainLayer : public BuiltLayer {
 public:
  PlainLayer(const char* function, std::size_t width) : width_(width) { require_size(function, "width", width); }
  std::size_t inputs() const override { return width_; }
  std::size_t outputs() const final { return width_; }

 private:
  std::size_t width_;
};

/// y = value(x), dx = derivative(x, dy).
template <auto value, auto derivative>
class FunctionLayer final : public PlainLayer {
 public:
  using PlainLayer::PlainLayer;
  void forward(const ForwardPass& pass) const override { value(pass, pass.x, pass.y); }
  void backward(const BackwardPass& pass) const override { derivative(pass, pass.x, pass.dy, pass.dx); }
};

template <ops::Gelu formula>
class GeluLayer final : public PlainLayer {
 public:
  using PlainLayer::PlainLayer;
  void forward(const ForwardPass& pass) const override { ops::gelu(pass, pass.x, pass.y, formula); }
  void backward(const BackwardPass& pass) const override { ops::gelu_backward(pass, pass.x, pass.dy, pass.dx, formula); }
};

class SwigluColumns final : public PlainLayer {
 public:
  using PlainLayer::PlainLayer;
  std::size_t inputs() const override { return 2 * outputs(); }
  void forward(const ForwardPass& pass) const override { ops::swiglu(pass, gate(pass.x), up(pass.x), pass.y); }
  void backward(const BackwardPass& pass) const override {
    ops::swiglu_backward(pass, gate(pass.x), up(pass.x), pass.dy, gate(pass.dx), up(pass.dx));
  }

 private:
  Tensor gate(const Tensor& both) const { return both.columns_from(0, outputs()); }
  Tensor up(const Tensor& both) const { return both.columns_from(outputs(), outputs()); }
};

class DropoutLayer final : public PlainLayer {
 public:
  DropoutLayer(std::size_t width, double p) : PlainLayer("dropout", width), p_(p) {
    if (!(p >= 0 && p < 1)) throw UserError(format("dropout() has p = {} (it is from 0 to below 1); correct it", p));
  }
  void forward(const ForwardPass& pass) const override { ops::dropout(pass, p_, pass.x, pass.y); }
  void backward(const BackwardPass& pass) const override { ops::dropout(pass, p_, pass.dy, pass.dx); }

 private:
  double p_;
};

class PositionEmbedding final : public PlainLayer {
 public:
  PositionEmbedding(std::size_t positions, std::size_t width, float standard_deviation)
      : PlainLayer("position_embedding", width), positions_(positions), standard_deviation_(standard_deviation) {
    require_size("position_embedding", "positions", positions);
  }
  std::vector<LayerParameter> parameters() const override {
    return {{"weight", {positions_, outputs()}, normal(standard_deviation_)}};
  }
  void check_batch(std::size_t /*B*/, std::size_t T) const override {
    if (T > positions_)
      throw UserError(
          format("position_embedding() has {} positions (the sequences have {}); raise its number of positions, or "
                 "lower sequence_length",
                 positions_, T));
  }
  void forward(const ForwardPass& pass) const override { ops::add_positions(pass, pass.x, pass.parameter(0), pass.y); }
  void backward(const BackwardPass& pass) const override {
    ops::add_positions_backward(pass, pass.dy, pass.gradient(0));
    ops::copy(pass, pass.dx, pass.dy);
  }

 private:
  std::size_t positions_;
  float standard_deviation_;
};

class TransposeLayer final : public PlainLayer {
 public:
  TransposeLayer(std::size_t rows, std::size_t columns)
      : PlainLayer("transpose", rows * columns), rows_(rows), columns_(columns) {
    require_size("transpose", "rows", rows), require_size("transpose", "columns", columns);
  }
  void forward(const ForwardPass& pass) const override { ops::transpose(pass, pass.x, rows_, pass.y); }
  void backward(const BackwardPass& pass) const override { ops::transpose(pass, pass.dy, columns_, pass.dx); }

 private:
  std::size_t rows_, columns_;
};

class IdentityLayer final : public PlainLayer {
 public:
  using PlainLayer::PlainLayer;
  void forward(const ForwardPass& pass) const override { ops::copy(pass, pass.y, pass.x); }
  void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }
};

class NormLayer final : public PlainLayer {
 public:
  NormLayer(std::size_t width, float eps, bool is_layer_norm)
      : PlainLayer(is_layer_norm ? "layer_norm" : "rms_norm", width), eps_(eps), is_layer_norm_(is_layer_norm) {
    if (!(eps >= 0 && std::isfinite(eps)))
      throw UserError(format("{}() has eps {} (it must be at least 0, and finite); correct it",
                             is_layer_norm ? "layer_norm" : "rms_norm", eps));
  }
  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> all = {{"weight", {outputs()}, constant(1)}};
    if (is_layer_norm_) all.push_back({"bias", {outputs()}, constant(0)});
    return all;
  }
  std::size_t saved_floats() const override { return is_layer_norm_ ? 2 : 1; }
  void forward(const ForwardPass& pass) const override {
    if (is_layer_norm_)
      ops::layer_norm(pass, pass.x, pass.parameter(0), pass.parameter(1), eps_, pass.y, pass.stats);
    else
      ops::rms_norm(pass, pass.x, pass.parameter(0), eps_, pass.y, pass.stats);
  }
  void backward(const BackwardPass& pass) const override {
    if (is_layer_norm_)
      ops::layer_norm_backward(pass, pass.x, pass.parameter(0), pass.stats, pass.dy, pass.dx, pass.gradient(0),
                               pass.gradient(1));
    else
      ops::rms_norm_backward(pass, pass.x, pass.parameter(0), pass.stats, pass.dy, pass.dx, pass.gradient(0));
  }

 private:
  float eps_;
  bool is_layer_norm_;
};

class EmbeddingLayer final : public BuiltLayer {
 public:
  EmbeddingLayer(std::size_t vocabulary, std::size_t width, float standard_deviation)
      : vocabulary_(vocabulary), width_(width), standard_deviation_(standard_deviation) {
    require_size("embedding", "vocabulary", vocabulary), require_size("embedding", "width", width);
  }
  std::vector<LayerParameter> parameters() const override {
    return {{"weight", {vocabulary_, width_}, normal(standard_deviation_)}};
  }
  std::size_t inputs() const override { return 1; }
  std::size_t outputs() const override { return width_; }
  bool takes_tokens() const override { return true; }
  std::size_t vocabulary() const override { return vocabulary_; }
  void forward(const ForwardPass& pass) const override {
    with_element(pass.type, [&]<class E>() {
      kernels::embedding_forward(*pass.stream, static_cast<E*>(pass.y.data), pass.tokens,
                                 static_cast<const E*>(pass.parameter(0).data), nullptr, pass.B, pass.T, width_);
    });
  }
  void backward(const BackwardPass& pass) const override {
    if (!pass.gradient(0)) return;
    with_element(pass.type, [&]<class E>() {
      kernels::embedding_backward(*pass.stream, pass.gradient(0).floats(), static_cast<const E*>(pass.dy.data), pass.tokens,
                                  pass.rows(), width_, vocabulary_, kernels::Write::add);
    });
  }

 private:
  std::size_t vocabulary_, width_;
  float standard_deviation_;
};

}  // namespace

LayerPtr linear(std::size_t in, std::size_t out, bool bias, float standard_deviation) {
  return std::make_shared<LinearLayer>(in, out, bias, standard_deviation);
}
LayerPtr relu(std::size_t width) { return std::make_shared<FunctionLayer<ops::relu, ops::relu_backward>>("relu", width); }
LayerPtr gelu(std::size_t width, ops::Gelu formula) {
  if (formula == ops::Gelu::tanh) return std::make_shared<GeluLayer<ops::Gelu::tanh>>("gelu", width);
  return std::make_shared<GeluLayer<ops::Gelu::erf>>("gelu", width);
}
LayerPtr silu(std::size_t width) { return std::make_shared<FunctionLayer<ops::silu, ops::silu_backward>>("silu", width); }
LayerPtr tanh(std::size_t width) { return std::make_shared<FunctionLayer<ops::tanh, ops::tanh_backward>>("tanh", width); }
LayerPtr sigmoid(std::size_t width) {
  return std::make_shared<FunctionLayer<ops::sigmoid, ops::sigmoid_backward>>("sigmoid", width);
}
LayerPtr swiglu(std::size_t width) { return std::make_shared<SwigluColumns>("swiglu", width); }
LayerPtr softmax(std::size_t width) {
  return std::make_shared<FunctionLayer<ops::softmax, ops::softmax_backward>>("softmax", width);
}
LayerPtr log_softmax(std::size_t width) {
  return std::make_shared<FunctionLayer<ops::log_softmax, ops::log_softmax_backward>>("log_softmax", width);
}
LayerPtr dropout(std::size_t width, double p) { return std::make_shared<DropoutLayer>(width, p); }
LayerPtr layer_norm(std::size_t width, float eps) { return std::make_shared<NormLayer>(width, eps, true); }
LayerPtr rms_norm(std::size_t width, float eps) { return std::make_shared<NormLayer>(width, eps, false); }
LayerPtr embedding(std::size_t vocabulary, std::size_t width, float standard_deviation) {
  return std::make_shared<EmbeddingLayer>(vocabulary, width, standard_deviation);
}
bool is_embedding(const Layer& layer) { return dynamic_cast<const EmbeddingLayer*>(&layer) != nullptr; }
LayerPtr position_embedding(std::size_t positions, std::size_t width, float standard_deviation) {
  return std::make_shared<PositionEmbedding>(positions, width, standard_deviation);
}
LayerPtr transpose(std::size_t rows, std::size_t columns) { return std::make_shared<TransposeLayer>(rows, columns); }
LayerPtr identity(std::size_t width) { return std::make_shared<IdentityLayer>("identity", width); }

}  // namespace fsdp
