#include "api/layers.hpp"

#include <cmath>

#include "api/ops.hpp"
#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/kernels.hpp"

namespace fsdp {

namespace {

using ops::Out;
using ops::Transpose;

class BuiltLayer : public Layer {
 public:
  bool works_in(DType) const final { return true; }
  bool works_on_gpu() const final { return true; }
};

class LinearLayer final : public BuiltLayer {
 public:
  LinearLayer(std::size_t in, std::size_t out, bool bias, float standard_deviation)
      : in_(in), out_(out), bias_(bias), standard_deviation_(standard_deviation) {
    if (in == 0 || out == 0)
      throw UserError(format("linear({}, {}) is empty (both sizes must be at least 1); correct them", in, out));
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

template <auto value, auto derivative>
class ElementwiseLayer final : public BuiltLayer {
 public:
  explicit ElementwiseLayer(std::size_t width) : width_(width) {}
  std::size_t inputs() const override { return width_; }
  std::size_t outputs() const override { return width_; }
  void forward(const ForwardPass& pass) const override { value(pass, pass.x, pass.y); }
  void backward(const BackwardPass& pass) const override { derivative(pass, pass.x, pass.dy, pass.dx); }

 private:
  std::size_t width_;
};

class NormLayer final : public BuiltLayer {
 public:
  NormLayer(std::size_t width, float eps, bool is_layer_norm) : width_(width), eps_(eps), is_layer_norm_(is_layer_norm) {}
  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> all = {{"weight", {width_}, constant(1)}};
    if (is_layer_norm_) all.push_back({"bias", {width_}, constant(0)});
    return all;
  }
  std::size_t inputs() const override { return width_; }
  std::size_t outputs() const override { return width_; }
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
  std::size_t width_;
  float eps_;
  bool is_layer_norm_;
};

class EmbeddingLayer final : public BuiltLayer {
 public:
  EmbeddingLayer(std::size_t vocabulary, std::size_t width, float standard_deviation)
      : vocabulary_(vocabulary), width_(width), standard_deviation_(standard_deviation) {}
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

class CrossEntropy final : public Loss {
 public:
  CrossEntropy(std::size_t classes, double label_smoothing, double z_loss)
      : classes_(classes), terms_{static_cast<float>(label_smoothing), static_cast<float>(z_loss)} {
    if (!(label_smoothing >= 0 && label_smoothing < 1 && z_loss >= 0 && z_loss < 1e30))
      throw UserError(format(
          "cross_entropy has label smoothing {} and z-loss {} (they are from 0 to below 1, and at least 0); correct them",
          label_smoothing, z_loss));
  }
  std::size_t inputs() const override { return classes_; }
  bool takes_labels() const override { return true; }
  std::size_t classes() const override { return classes_; }
  std::size_t scratch() const override { return classes_ + 8; }  // the logits' gradients, and three floats of statistics
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  void evaluate(const LossPass& pass) const override {
    with_element(pass.type, [&]<class E>() {
      E* const values = static_cast<E*>(pass.dx ? pass.dx.data : pass.scratch.data);
      const Tensor stats = pass.scratch.part(classes_, 8);
      pass.stream->copy(values, pass.x.data, pass.x.numel() * sizeof(E));
      const kernels::Logits<E> logits = {.values = values,
                                         .stats = static_cast<kernels::SoftmaxStats*>(stats.data),
                                         .targets = pass.labels,
                                         .R = pass.rows(),
                                         .V = classes_,
                                         .piece = classes_};
      kernels::cross_entropy(*pass.stream, pass.losses, logits, 0);
      if (pass.dx && terms_.any())
        kernels::logit_gradient(*pass.stream, logits, 0, pass.scale, terms_, pass.losses);
      else if (pass.dx)
        kernels::logit_gradient(*pass.stream, logits, 0, pass.scale);
    });
  }

 private:
  std::size_t classes_;
  kernels::LossTerms terms_;
};

class MeanSquaredError final : public Loss {
 public:
  explicit MeanSquaredError(std::size_t width) : width_(width) {}
  std::size_t inputs() const override { return width_; }
  bool takes_labels() const override { return false; }
  std::size_t targets() const override { return width_; }
  void evaluate(const LossPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      const float *const x = pass.x.row(r), *const target = pass.targets.row(r);
      double sum = 0;
      for (std::size_t i = 0; i < width_; ++i) {
        const float error = x[i] - target[i];
        sum += static_cast<double>(error) * static_cast<double>(error);
        if (pass.dx) pass.dx.row(r)[i] = pass.scale * 2 * error / static_cast<float>(width_);
      }
      pass.losses[r] = static_cast<float>(sum / static_cast<double>(width_));
    }
  }

 private:
  std::size_t width_;
};

}  // namespace

LayerPtr linear(std::size_t in, std::size_t out, bool bias, float standard_deviation) {
  return std::make_shared<LinearLayer>(in, out, bias, standard_deviation);
}
LayerPtr relu(std::size_t width) { return std::make_shared<ElementwiseLayer<ops::relu, ops::relu_backward>>(width); }
LayerPtr gelu(std::size_t width) { return std::make_shared<ElementwiseLayer<ops::gelu, ops::gelu_backward>>(width); }
LayerPtr layer_norm(std::size_t width, float eps) { return std::make_shared<NormLayer>(width, eps, true); }
LayerPtr rms_norm(std::size_t width, float eps) { return std::make_shared<NormLayer>(width, eps, false); }
LayerPtr embedding(std::size_t vocabulary, std::size_t width, float standard_deviation) {
  return std::make_shared<EmbeddingLayer>(vocabulary, width, standard_deviation);
}
LossPtr cross_entropy(std::size_t classes, double label_smoothing, double z_loss) {
  return std::make_shared<CrossEntropy>(classes, label_smoothing, z_loss);
}
LossPtr mean_squared_error(std::size_t width) { return std::make_shared<MeanSquaredError>(width); }

}  // namespace fsdp
