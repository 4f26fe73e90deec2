#include "layers/losses.hpp"

#include <memory>
#include <utility>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/layers.hpp"
#include "layers/place.hpp"

namespace fsdp {

namespace {

/// Throws UserError unless there are `wanted` weights, all in a range in which sums of losses are exact (kernels::LossSum).
void require_weights(const char* function, const char* field, const std::vector<float>& weights, std::size_t wanted) {
  constexpr float most = 0x1p20f;
  if (weights.empty()) return;
  if (weights.size() != wanted)
    throw UserError(
        format("{} has {} numbers in {} (it needs {}, or none); correct {}", function, weights.size(), field, wanted, field));
  for (const float weight : weights)
    if (!(weight >= 0 && weight <= most))
      throw UserError(
          format("{} has {} in {} (each number is from 0 to {}); correct {}", function, weight, field, most, field));
}

class BuiltLoss : public Loss {
 public:
  BuiltLoss(const char* function, std::size_t width) : width_(width) { require_size(function, "width", width); }
  std::size_t inputs() const final { return width_; }
  bool works_in(DType) const final { return true; }
  bool works_on_gpu() const final { return true; }
  bool looks_ahead() const final { return false; }

 private:
  std::size_t width_;
};

class CrossEntropy final : public BuiltLoss {
 public:
  CrossEntropy(std::size_t classes, CrossEntropyOptions options)
      : BuiltLoss("cross_entropy", classes),
        terms_{static_cast<float>(options.label_smoothing), static_cast<float>(options.z_loss)},
        weights_(std::move(options.weight)),
        ignore_index_(options.ignore_index) {
    if (!(options.label_smoothing >= 0 && options.label_smoothing < 1 && options.z_loss >= 0 && options.z_loss < 1e30))
      throw UserError(
          format("cross_entropy(): label_smoothing is {} (it must be in [0, 1)) and z_loss is {} (it must be at least 0); "
                 "correct them",
                 options.label_smoothing, options.z_loss));
    require_weights("cross_entropy", "weight", weights_, classes);
  }
  bool takes_labels() const override { return true; }
  std::size_t classes() const override { return inputs(); }
  std::int32_t ignore_index() const override { return ignore_index_; }
  double weight(std::int32_t label) const override {
    return weights_.empty() ? 1 : static_cast<double>(weights_[static_cast<std::size_t>(label)]);
  }
  /// 8 numbers, which hold the three floats of statistics in every type and are first for alignment; then the logits.
  std::size_t scratch() const override { return 8 + inputs(); }
  void evaluate(const LossPass& pass) const override {
    with_element(pass.type, [&]<class E>() {
      const std::size_t classes = inputs();
      const kernels::LossTerms terms = pass.update > 0 ? terms_ : kernels::LossTerms();  // only training has them
      E* const values = static_cast<E*>(pass.dx ? pass.dx.data : pass.scratch.part(8, classes).data);
      pass.stream->copy(values, pass.x.data, pass.x.numel() * sizeof(E));
      const kernels::Logits<E> logits = {.values = values,
                                         .stats = static_cast<kernels::SoftmaxStats*>(pass.scratch.part(0, 8).data),
                                         .targets = pass.labels,
                                         .R = pass.rows(),
                                         .V = classes,
                                         .piece = classes};
      kernels::cross_entropy(*pass.stream, pass.losses, logits, 0);
      if (!weights_.empty()) {  // copied to the memory for gradients of parameters, which this loss does not have
        pass.stream->copy(pass.unwanted, weights_.data(), classes * sizeof(float));
        kernels::weigh_classes(*pass.stream, pass.losses, logits, pass.unwanted, terms, static_cast<bool>(pass.dx), pass.scale);
      } else if (pass.dx && terms.any()) {
        kernels::logit_gradient(*pass.stream, logits, 0, pass.scale, terms, pass.losses);
      } else if (pass.dx) {
        kernels::logit_gradient(*pass.stream, logits, 0, pass.scale);
      }
    });
  }

 private:
  kernels::LossTerms terms_;
  std::vector<float> weights_;
  std::int32_t ignore_index_;
};

/// A loss whose targets are numbers. `compute` computes it.
template <class Compute>
class NumberLoss final : public BuiltLoss {
 public:
  NumberLoss(const char* function, std::size_t width, Compute compute)
      : BuiltLoss(function, width), compute_(std::move(compute)) {}
  bool takes_labels() const override { return false; }
  std::size_t targets() const override { return inputs(); }
  void evaluate(const LossPass& pass) const override {
    with_element(pass.type, [&]<class E>() {
      compute_(pass, kernels::LossRows<E>{.loss = pass.losses,
                                          .dx = static_cast<E*>(pass.dx.data),
                                          .x = static_cast<const E*>(pass.x.data),
                                          .targets = pass.targets.floats(),
                                          .R = pass.rows(),
                                          .C = inputs(),
                                          .gradient_scale = pass.scale});
    });
  }

 private:
  Compute compute_;
};

template <class Compute>
LossPtr make_loss(const char* function, std::size_t width, Compute compute) {
  return std::make_shared<NumberLoss<Compute>>(function, width, std::move(compute));
}

void require_positive(const char* function, const char* field, double value) {
  if (!(value > 0 && value < 1e30))
    throw UserError(format("{}() has {} {} (it must be above 0, and finite); correct it", function, field, value));
}

}  // namespace

LossPtr cross_entropy(std::size_t classes, double label_smoothing, double z_loss) {
  return cross_entropy(classes, {.label_smoothing = label_smoothing, .z_loss = z_loss});
}
LossPtr cross_entropy(std::size_t classes, CrossEntropyOptions options) {
  return std::make_shared<CrossEntropy>(classes, std::move(options));
}
LossPtr mean_squared_error(std::size_t width) {
  return make_loss("mean_squared_error", width,
                   [](const Pass& pass, const auto& rows) { kernels::squared_error(*pass.stream, rows); });
}
LossPtr l1_loss(std::size_t width) {
  return make_loss("l1_loss", width, [](const Pass& pass, const auto& rows) { kernels::absolute_error(*pass.stream, rows); });
}
LossPtr huber_loss(std::size_t width, double delta) {
  require_positive("huber_loss", "delta", delta);
  return make_loss("huber_loss", width, [delta = static_cast<float>(delta)](const Pass& pass, const auto& rows) {
    kernels::huber_error(*pass.stream, rows, delta, 1.0f);
  });
}
LossPtr smooth_l1_loss(std::size_t width, double beta) {
  require_positive("smooth_l1_loss", "beta", beta);
  return make_loss("smooth_l1_loss", width, [beta = static_cast<float>(beta)](const Pass& pass, const auto& rows) {
    kernels::huber_error(*pass.stream, rows, beta, 1.0f / beta);
  });
}
LossPtr binary_cross_entropy_with_logits(std::size_t width, std::vector<float> pos_weight) {
  require_weights("binary_cross_entropy_with_logits", "pos_weight", pos_weight, width);
  return make_loss("binary_cross_entropy_with_logits", width,
                   [weights = std::move(pos_weight)](const Pass& pass, const auto& rows) {
                     float* there = nullptr;
                     if (!weights.empty()) {
                       there = pass.unwanted;  // has room for them: the loss has no parameters
                       pass.stream->copy(there, weights.data(), weights.size() * sizeof(float));
                     }
                     kernels::binary_cross_entropy(*pass.stream, rows, there);
                   });
}

}  // namespace fsdp
