// Central differences of a weighted sum of the results, in fp64: (f(p + h) - f(p - h)) / 2h.
#include "api/check_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "api/chain.hpp"
#include "base/format.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

namespace {

/// A layer of a user's whose result is weighted by a loss of ours, or a loss of a user's behind nothing, as a model.
class Trial {
 public:
  Trial(const Chain& chain, const GradientCheckOptions& options)
      : chain_(chain), options_(options), shape_{options.B, options.T} {
    const ModelSizes sizes = chain.sizes(shape_, DType::f32, {});
    scratch_.resize(sizes.scratch / sizeof(float) + 1);
    inputs_.resize(sizes.inputs / sizeof(float));
    targets_.resize(sizes.targets / sizeof(float));
    for (const std::size_t bytes : sizes.activations) x_.emplace_back(bytes / sizeof(float));
    for (const std::size_t bytes : sizes.saved) saved_.emplace_back(bytes / sizeof(float) + 1);
    for (const Parameter& parameter : chain.parameters()) {
      const std::size_t n = numel(parameter.shape);
      parameters_.emplace_back(n), gradients_.emplace_back(n);
      // A constant would hide what is multiplied by it: around it, then.
      const float mean = parameter.init.kind == Init::Kind::constant ? parameter.init.value : 0;
      const float deviation = parameter.init.kind == Init::Kind::constant ? 0.3f : std::max(parameter.init.value, 0.3f);
      fill(parameters_.back(), static_cast<std::uint32_t>(parameters_.size()), mean, deviation);
    }
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      weights_.push_back(parameters_[p].data()), d_weights_.push_back(gradients_[p].data());
  }

  std::vector<float>& inputs() { return inputs_; }
  std::vector<float>& targets() { return targets_; }

  void fill(std::vector<float>& values, std::uint32_t tensor, float mean = 0, float deviation = 1) {
    kernels::fill_normal(*stream_, values.data(), values.size(), 0, static_cast<std::uint32_t>(options_.seed), tensor, mean,
                         deviation);
  }

  double value() {
    forward();
    kernels::LossSum sum;
    chain_.head_loss(context(), x_.back().data(), labels(), sum, nullptr);
    return sum.value();
  }

  GradientCheck check() {
    std::size_t widest = 0;
    for (const auto& x : x_) widest = std::max(widest, x.size());
    std::vector<float> dx(widest);
    backward(dx, kernels::Write::overwrite);
    const std::vector<std::vector<float>> once = gradients_;
    backward(dx, kernels::Write::add);
    for (std::size_t p = 0; p < once.size(); ++p)
      for (std::size_t i = 0; i < once[p].size() && result_.passed; ++i)
        if (std::abs(gradients_[p][i] - 2 * once[p][i]) > 1e-3f * std::abs(once[p][i]) + 1e-6f) {
          result_ = {false, 1,
                     format("{}: backward adds {:.6g} to its gradient once, and makes {:.6g} of it twice; it is to add",
                            chain_.parameters()[p].name, once[p][i], gradients_[p][i])};
          return result_;
        }
    if (!chain_.takes_tokens())
      compare("x", inputs_, {dx.begin(), dx.begin() + static_cast<std::ptrdiff_t>(inputs_.size())},
              inputs_.size() / shape_.rows());
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      compare(chain_.parameters()[p].name, parameters_[p], once[p], chain_.parameters()[p].shape.back());
    return result_;
  }

 private:
  StageContext context() {
    return {.stream = *stream_,
            .weights = weights_,
            .gradients = d_weights_,
            .scratch = scratch_.data(),
            .tables = nullptr,
            .shape = shape_};
  }
  const std::int32_t* tokens() const { return reinterpret_cast<const std::int32_t*>(inputs_.data()); }
  const std::int32_t* labels() const { return reinterpret_cast<const std::int32_t*>(targets_.data()); }

  void backward(std::vector<float>& dx, kernels::Write write) {
    forward();
    kernels::LossSum sum;
    chain_.head_forward_backward(context(), x_.back().data(), labels(), 1, sum, dx.data(), write);
    for (std::size_t b = chain_.blocks(); b-- > 0;)
      chain_.block_backward(context(), b, x_[b].data(), saved_[b].data(), dx.data(), write, nullptr);
    chain_.embedding_backward(context(), tokens(), dx.data(), write);
  }

  void forward() {
    chain_.embedding_forward(context(), tokens(), x_[0].data());
    for (std::size_t b = 0; b < chain_.blocks(); ++b)
      chain_.block_forward(context(), b, x_[b].data(), x_[b + 1].data(), saved_[b].data(), nullptr);
  }

  void compare(const std::string& name, std::vector<float>& values, const std::vector<float>& derivatives,
               std::size_t columns) {
    double largest = 0;
    for (const float d : derivatives) largest = std::max(largest, std::abs(static_cast<double>(d)));
    const std::size_t tried = std::min(values.size(), options_.most_elements);
    std::vector<std::pair<std::size_t, double>> differences;
    for (std::size_t i = 0; i < tried; ++i) {
      const std::size_t at = i * values.size() / tried;
      const float before = values[at];
      const float above = before + static_cast<float>(options_.step), below = before - static_cast<float>(options_.step);
      values[at] = above;
      const double high = value();
      values[at] = below;
      const double low = value();
      values[at] = before;
      differences.emplace_back(at, (high - low) / (static_cast<double>(above) - static_cast<double>(below)));
      largest = std::max(largest, std::abs(differences.back().second));
    }
    for (const auto& [at, difference] : differences) {
      const double error = std::abs(derivatives[at] - difference) / std::max(largest, 1e-6);
      if (error <= result_.worst || std::isnan(result_.worst)) continue;
      result_.worst = error;
      result_.where = format("{}[{}, {}]: backward says {:.6g}, differences say {:.6g}", name, at / columns, at % columns,
                             derivatives[at], difference);
      if (!(error <= options_.tolerance)) result_.passed = false;
    }
  }

  const Chain& chain_;
  const GradientCheckOptions options_;
  const BatchShape shape_;
  const std::shared_ptr<Stream> stream_ = make_host_stream();
  std::vector<float> scratch_, inputs_, targets_;
  std::vector<std::vector<float>> x_, saved_, parameters_, gradients_;
  std::vector<const void*> weights_;
  std::vector<float*> d_weights_;
  GradientCheck result_;
};

/// The sum of x times weights, which are its targets.
class WeightedSum final : public Loss {
 public:
  explicit WeightedSum(std::size_t width) : width_(width) {}
  std::size_t inputs() const override { return width_; }
  std::size_t targets() const override { return width_; }
  bool takes_labels() const override { return false; }
  void evaluate(const LossPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      double sum = 0;
      for (std::size_t i = 0; i < width_; ++i) {
        const float weight = pass.targets.row(r)[i];
        sum += static_cast<double>(weight) * static_cast<double>(pass.x.row(r)[i]);
        if (pass.dx) pass.dx.row(r)[i] = pass.scale * weight;
      }
      pass.losses[r] = static_cast<float>(sum);
    }
  }

 private:
  std::size_t width_;
};

/// The user's object, which lives longer than what points to it here.
template <class T>
std::shared_ptr<const T> borrowed(const T& object) {
  return {&object, [](const T*) {}};
}

}  // namespace

GradientCheck check_gradients(const Layer& layer, const GradientCheckOptions& options) {
  const Chain chain({{"layer", borrowed(layer)}}, "sum", std::make_shared<WeightedSum>(layer.outputs()),
                    kernels::traits_of_cpu());
  Trial trial(chain, options);
  if (layer.takes_tokens()) {
    auto* const tokens = reinterpret_cast<std::int32_t*>(trial.inputs().data());
    for (std::size_t i = 0; i < trial.inputs().size(); ++i)
      tokens[i] = static_cast<std::int32_t>(i % 3);  // any vocabulary has these
  } else {
    trial.fill(trial.inputs(), 1001);
  }
  trial.fill(trial.targets(), 1002);
  return trial.check();
}

GradientCheck check_gradients(const Loss& loss, const GradientCheckOptions& options) {
  const Chain chain({}, "loss", borrowed(loss), kernels::traits_of_cpu());
  Trial trial(chain, options);
  trial.fill(trial.inputs(), 1001);
  if (loss.takes_labels()) {
    auto* const labels = reinterpret_cast<std::int32_t*>(trial.targets().data());
    for (std::size_t i = 0; i < trial.targets().size(); ++i)
      labels[i] = static_cast<std::int32_t>(i % loss.inputs()) -
                  (i == 1 ? static_cast<std::int32_t>(loss.inputs()) : 0);  // one does not count
  } else {
    trial.fill(trial.targets(), 1002);
  }
  return trial.check();
}

}  // namespace fsdp
