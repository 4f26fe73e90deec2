// Compares gradients with central differences, (f(p + h) - f(p - h)) / (2 h), where f is a weighted sum of the results in fp64.
#include "testing/check_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "layers/chain.hpp"

namespace fsdp {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Fills a tensor with NaN, to detect elements that a pass does not write.
void poison(const Tensor& tensor) {
  if (!tensor) return;
  with_element(tensor.type, [&]<class E>() { std::fill_n(static_cast<E*>(tensor.data), tensor.numel(), E(nan)); });
}

/// Runs a pass (`work`), and throws if it has changed a tensor that it must only read: a parameter, or a tensor in `more`.
template <class Work>
void reading(const char* what, const Pass& pass, std::initializer_list<Tensor> more, Work&& work) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (std::size_t i = 0; i < pass.parameters.size(); ++i) tensors.emplace_back(pass.parameters[i].name, pass.parameter(i));
  for (const Tensor& tensor : more)
    if (tensor) tensors.emplace_back(tensor.data == pass.x.data ? "x" : "targets", tensor);
  std::vector<std::vector<std::byte>> before;
  for (const auto& [name, tensor] : tensors) {
    const auto* const bytes = static_cast<const std::byte*>(tensor.data);
    before.emplace_back(bytes, bytes + tensor.numel() * size_of(tensor.type));
  }
  work();
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (std::memcmp(before[i].data(), tensors[i].second.data, before[i].size()) != 0)
      throw UserError(format("{} has changed {}, which it must only read", what, tensors[i].first));
}

/// Wraps a user's layer. Before each pass, it fills with NaN the memory that the layer must write.
class PoisonedLayer final : public Layer {
 public:
  explicit PoisonedLayer(const Layer& layer) : layer_(layer) {}
  std::vector<LayerParameter> parameters() const override { return layer_.parameters(); }
  std::size_t inputs() const override { return layer_.inputs(); }
  std::size_t outputs() const override { return layer_.outputs(); }
  bool takes_tokens() const override { return layer_.takes_tokens(); }
  std::size_t vocabulary() const override { return layer_.vocabulary(); }
  std::size_t saved() const override { return layer_.saved(); }
  std::size_t saved_floats() const override { return layer_.saved_floats(); }
  std::size_t scratch() const override { return layer_.scratch(); }
  MemorySizes sizes(const BatchSizes& batch) const override { return layer_.sizes(batch); }
  void check_batch(std::size_t B, std::size_t T) const override { layer_.check_batch(B, T); }
  std::size_t gathers() const override { return layer_.gathers(); }
  bool works_in(DType type) const override { return layer_.works_in(type); }
  void forward(const ForwardPass& pass) const override {
    for (const Tensor& tensor : {pass.y, pass.saved, pass.stats, pass.scratch}) poison(tensor);
    reading("forward", pass, {pass.x}, [&] { layer_.forward(pass); });
  }
  void backward(const BackwardPass& pass) const override {
    for (const Tensor& tensor : {pass.dx, pass.scratch}) poison(tensor);
    for (std::size_t i = 0; i < pass.parameters.size(); ++i)
      if (pass.parameters[i].kind == LayerParameter::Kind::state) poison(pass.next(i));
    reading("backward", pass, {pass.x}, [&] { layer_.backward(pass); });
  }

 private:
  const Layer& layer_;
};

class PoisonedLoss final : public Loss {
 public:
  explicit PoisonedLoss(const Loss& loss) : loss_(loss) {}
  std::vector<LayerParameter> parameters() const override { return loss_.parameters(); }
  std::size_t inputs() const override { return loss_.inputs(); }
  bool takes_labels() const override { return loss_.takes_labels(); }
  std::size_t classes() const override { return loss_.classes(); }
  std::size_t targets() const override { return loss_.targets(); }
  std::size_t scratch() const override { return loss_.scratch(); }
  MemorySizes sizes(const BatchSizes& batch) const override { return loss_.sizes(batch); }
  void check_batch(std::size_t B, std::size_t T) const override { loss_.check_batch(B, T); }
  bool works_in(DType type) const override { return loss_.works_in(type); }
  void evaluate(const LossPass& pass) const override {
    for (const Tensor& tensor : {pass.dx, pass.scratch}) poison(tensor);
    std::fill_n(pass.losses, pass.rows(), nan);
    if (!loss_.sees_all_ranks()) return reading("evaluate", pass, {pass.x, pass.targets}, [&] { loss_.evaluate(pass); });
    LossPass of_all = pass;  // the rows of one rank
    of_all.all = pass.x, of_all.all_targets = pass.targets;
    if (pass.labels) of_all.all_labels = {pass.labels, pass.rows() * loss_.targets()};
    std::vector<float> d_all(pass.dx ? pass.x.numel() : 0);
    if (pass.dx) of_all.d_all = {d_all.data(), pass.x.rows, pass.x.columns, pass.x.columns};
    reading("evaluate", of_all, {pass.x, pass.targets}, [&] { loss_.evaluate(of_all); });
    for (std::size_t i = 0; i < d_all.size(); ++i) {
      const std::size_t r = i / pass.x.columns, c = i % pass.x.columns;
      pass.dx.set(r, c, pass.dx.get(r, c) + d_all[i]);
    }
  }

 private:
  const Loss& loss_;
};

/// The results of forward and backward, in fp32. For a loss, `y` contains the loss of each row.
struct Results {
  std::vector<float> y, dx;
  std::vector<std::vector<float>> gradients;  // by parameter
};

/// A model with its memory: a user's layer with our WeightedSum as its loss, or a user's loss without a layer. Inputs and
/// parameters are fp32 numbers, which are rounded to `type` before each pass.
class Trial {
 public:
  Trial(const Chain& chain, const GradientCheckOptions& options, DType type)
      : chain_(chain), shape_{options.B, options.T}, type_(type), seed_(options.seed) {
    const ModelSizes sizes = chain.sizes(shape_, type, {});
    scratch_.resize(sizes.scratch / sizeof(float) + 1);
    inputs.resize(sizes.inputs / sizeof(float));
    targets.resize(sizes.targets / sizeof(float));
    losses_.resize(sizes.losses / sizeof(float));
    for (const std::size_t bytes : sizes.activations) x_.emplace_back(bytes);
    for (const std::size_t bytes : sizes.saved) saved_.emplace_back(bytes / sizeof(float) + 1);
    for (const Parameter& parameter : chain.parameters()) {
      const std::size_t n = numel(parameter.shape);
      // A parameter with a constant initial value gets random values around it: the constant, such as 0, could hide errors in
      // terms that it multiplies.
      const bool is_constant = parameter.init.kind == Init::Kind::constant;
      parameters.push_back(normal_numbers(n, static_cast<std::uint32_t>(parameters.size()) + 1,
                                          is_constant ? parameter.init.value : 0,
                                          is_constant ? 0.3f : std::max(parameter.init.value, 0.3f)));
      rounded_.emplace_back(n * size_of(type_of(parameter))), gradients_.emplace_back(n);
    }
    gathered_.resize(sizes.gathered_in_layers / sizeof(float));
    std::size_t widest = 0;
    for (const auto& x : x_) widest = std::max(widest, x.size());
    dx_.resize(widest);
  }

  std::vector<float> normal_numbers(std::size_t n, std::uint32_t tensor, float mean = 0, float deviation = 1) {
    std::vector<float> values(n);
    kernels::fill_normal(*stream_, values.data(), n, 0, seed_, tensor, mean, deviation);
    return values;
  }

  /// Returns the sum of the losses over the rows.
  double value() {
    forward();
    kernels::LossSum sum;
    chain_.loss->forward(context(), x_.back().data(), labels(), sum, losses_.data());
    if (is_layer()) return sum.value();
    // The gradients are those of the loss in training, which may have more terms.
    StageContext without_gradients = context();
    without_gradients.gradients = {};
    kernels::LossSum in_training;
    chain_.loss->forward_backward(without_gradients, x_.back().data(), labels(), 1, in_training, dx_.data(),
                                  kernels::Write::add);
    return in_training.value();
  }

  /// Runs forward and backward `times` times; all runs but the first add to the gradients. If frozen[i] is true, the gradient
  /// of parameter i is not computed. Gradients are those of `scale` times the loss.
  Results run(const std::vector<bool>& frozen = {}, int times = 1, float scale = 1) {
    d_weights_.clear();
    for (std::size_t p = 0; p < gradients_.size(); ++p)
      d_weights_.push_back(chain_.parameters()[p].is_constant || (!frozen.empty() && frozen[p]) ? nullptr
                                                                                                : gradients_[p].data());
    for (int time = 0; time < times; ++time) {
      value();
      const kernels::Write write = time == 0 ? kernels::Write::overwrite : kernels::Write::add;
      kernels::LossSum sum;
      chain_.loss->forward_backward(context(), x_.back().data(), labels(), scale, sum, dx_.data(), write);
      for (std::size_t b = chain_.blocks.size(); b-- > 0;)
        chain_.blocks[b]->backward(context(), x_[b].data(), saved_[b].data(), dx_.data(), write);
      chain_.first->backward(context(), tokens(), dx_.data(), write);
    }
    Results results{is_layer() ? as_fp32(x_.back(), x_.back().size() / size_of(type_))
                               : std::vector(losses_.begin(), losses_.begin() + static_cast<std::ptrdiff_t>(shape_.rows())),
                    {},
                    gradients_};
    if (!chain_.row_sizes.tokens) results.dx = as_fp32(dx_, inputs.size());
    return results;
  }

  /// Returns false for constants and state. The "gradient" of a state is what moves it.
  bool has_gradient(std::size_t p) const {
    const Parameter& parameter = chain_.parameters()[p];
    return !parameter.is_constant && !parameter.is_state();
  }

  std::vector<float> inputs, targets;  // tokens and labels are stored as integers in this memory
  std::vector<std::vector<float>> parameters;

 private:
  StageContext context() {
    return {.stream = *stream_,
            .weights = weights_,
            .gradients = d_weights_,
            .scratch = scratch_.data(),
            .tables = nullptr,
            .shape = shape_,
            .dropout = {.seed = seed_, .update = 1},
            .type = type_,
            .layers = {.memory = gathered_.data()}};
  }
  DType type_of(const Parameter& parameter) const { return parameter.is_state() ? DType::f32 : type_; }
  bool is_layer() const { return !chain_.blocks.empty() || chain_.row_sizes.tokens; }
  const std::int32_t* tokens() const { return reinterpret_cast<const std::int32_t*>(inputs.data()); }
  const std::int32_t* labels() const { return reinterpret_cast<const std::int32_t*>(targets.data()); }

  std::vector<float> as_fp32(const std::vector<std::byte>& memory, std::size_t n) const {
    return with_element(type_, [&]<class E>() {
      const auto* const numbers = reinterpret_cast<const E*>(memory.data());
      return std::vector<float>(numbers, numbers + n);
    });
  }

  void forward() {
    weights_.clear();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      with_element(type_of(chain_.parameters()[p]), [&]<class E>() {
        auto* const to = reinterpret_cast<E*>(rounded_[p].data());
        for (std::size_t i = 0; i < parameters[p].size(); ++i) to[i] = E(parameters[p][i]);
      });
      weights_.push_back(rounded_[p].data());
    }
    chain_.first->forward(context(), tokens(), x_[0].data());
    for (std::size_t b = 0; b < chain_.blocks.size(); ++b)
      chain_.blocks[b]->forward(context(), x_[b].data(), x_[b + 1].data(), saved_[b].data());
  }

  const Chain& chain_;
  const BatchShape shape_;
  const DType type_;
  const std::uint32_t seed_;
  const std::shared_ptr<Stream> stream_ = make_host_stream();
  std::vector<std::vector<std::byte>> x_, rounded_;
  std::vector<std::byte> dx_;
  std::vector<float> scratch_, losses_, gathered_;
  std::vector<std::vector<float>> saved_, gradients_;
  std::vector<const void*> weights_;
  std::vector<float*> d_weights_;
};

float largest_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

/// Returns a name such as "x[1, 2]".
std::string place(const std::string& name, std::size_t at, std::size_t columns) {
  return format("{}[{}, {}]", name, at / columns, at % columns);
}

/// The checks of check_gradients(). Each returns a description of the problem, or an empty string if the check passes.
class Check {
 public:
  /// `fill` writes the inputs and targets of a trial.
  Check(const Chain& chain, const GradientCheckOptions& options, const std::function<void(Trial&)>& fill)
      : chain_(chain), options_(options), fill_(fill), trial_(chain, options, DType::f32) {
    fill_(trial_);
    y_columns_ = !chain_.blocks.empty() || chain_.row_sizes.tokens ? chain_.user_loss().inputs() : 1;
  }

  GradientCheck run() {
    try {
      first_ = trial_.run();
      for (const auto& step : {&Check::unwritten, &Check::depends_on_more, &Check::does_not_add})
        if (const std::string problem = (this->*step)(); !problem.empty()) return {false, 1, problem};
      differences();
      if (!result_.passed) return result_;
      for (const auto& step : {&Check::does_not_scale, &Check::frozen})
        if (const std::string problem = (this->*step)(); !problem.empty()) return {false, 1, problem};
      for (const DType type : {DType::bf16, DType::f16})
        if (result_.passed) in_16_bits(type);
      return result_;
    } catch (const UserError& error) {
      return {false, 1, error.what()};
    }
  }

 private:
  std::string unwritten() {
    for (const auto& [name, values, columns] :
         {std::tuple{"y", &first_.y, y_columns_}, std::tuple{"dx", &first_.dx, dx_columns()}})
      for (std::size_t i = 0; i < values->size(); ++i)
        if (std::isnan((*values)[i]))
          return format("{} is NaN or was not written; all elements must be written", place(name, i, columns));
    for (std::size_t p = 0; p < first_.gradients.size(); ++p)
      for (std::size_t i = 0; i < first_.gradients[p].size() && parameter(p).is_state(); ++i)
        if (std::isnan(first_.gradients[p][i]))
          return format("next() of {} is NaN or was not written; all elements must be written",
                        place(parameter(p).name, i, parameter(p).shape.back()));
    return "";
  }

  std::string depends_on_more() {
    const Results again = trial_.run();
    for (std::size_t i = 0; i < again.y.size(); ++i)
      if (again.y[i] != first_.y[i])
        return format(
            "{}: forward gives {:.6g}, but {:.6g} in a second call with the same inputs; it must depend only on the pass",
            place("y", i, y_columns_), first_.y[i], again.y[i]);
    return "";
  }

  std::string does_not_add() {
    const Results twice = trial_.run({}, 2);
    for (std::size_t p = 0; p < twice.gradients.size(); ++p)
      for (std::size_t i = 0; i < twice.gradients[p].size(); ++i) {
        const float once = first_.gradients[p][i], both = twice.gradients[p][i];
        if (std::abs(both - 2 * once) > 1e-3f * std::abs(once) + 1e-6f)
          return format("{}: the gradient is {:.6g} after one call of backward, and {:.6g} after two; backward must add to it",
                        parameter(p).name, once, both);
      }
    return "";
  }

  std::string does_not_scale() {
    constexpr float scale = 0.25f;  // a power of 2: multiplication is exact
    const Results scaled = trial_.run({}, 1, scale);
    const char* const who =
        !chain_.blocks.empty() || chain_.row_sizes.tokens ? "backward with dy times" : "evaluate with scale";
    const auto problem = [&](const std::vector<float>& of, const std::vector<float>& whole, const std::string& name,
                             std::size_t columns) -> std::string {
      const float largest = largest_of(whole);
      for (std::size_t i = 0; i < of.size(); ++i)
        if (!(std::abs(of[i] / scale - whole[i]) <= 1e-3f * largest))
          return format("{}: {} {} gives {:.6g}, but {:.6g} with 1; the result must be proportional to this factor",
                        place(name, i, columns), who, scale, of[i], whole[i]);
      return "";
    };
    std::string found = problem(scaled.dx, first_.dx, "dx", dx_columns());
    for (std::size_t p = 0; p < scaled.gradients.size() && found.empty(); ++p)
      if (trial_.has_gradient(p))
        found = problem(scaled.gradients[p], first_.gradients[p], parameter(p).name, parameter(p).shape.back());
    return found;
  }

  std::string frozen() {
    const std::size_t count = trial_.parameters.size();
    for (std::size_t one = 0; one <= count && count > 0; ++one) {
      std::vector<bool> frozen(count, one == count);  // in the last pass of the loop, all parameters are frozen
      if (one < count) frozen[one] = true;
      const std::string where = one < count ? parameter(one).name + " is" : "all parameters are";
      Results results;
      try {
        results = trial_.run(frozen);
      } catch (const UserError& error) {
        return format("if {} frozen: {}", where, error.what());
      }
      std::string problem = first_difference(results.dx, first_.dx, "dx", dx_columns());
      for (std::size_t p = 0; p < count && problem.empty(); ++p)
        if (!frozen[p])
          problem = first_difference(results.gradients[p], first_.gradients[p], parameter(p).name, parameter(p).shape.back());
      if (!problem.empty()) return format("if {} frozen, {}", where, problem);
    }
    return "";
  }

  static std::string first_difference(const std::vector<float>& a, const std::vector<float>& b, const std::string& name,
                                      std::size_t columns) {
    const float largest = largest_of(b);
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!(std::abs(a[i] - b[i]) <= 1e-5f * largest) && !(std::isnan(a[i]) && std::isnan(b[i])))
        return format("backward gives {} as {:.6g}, otherwise as {:.6g}; both must be the same", place(name, i, columns), a[i],
                      b[i]);
    return "";
  }

  void differences() {
    if (!chain_.row_sizes.tokens) differences_of("x", trial_.inputs, first_.dx, dx_columns());
    for (std::size_t p = 0; p < trial_.parameters.size(); ++p)
      if (trial_.has_gradient(p))
        differences_of(parameter(p).name, trial_.parameters[p], first_.gradients[p], parameter(p).shape.back());
  }

  /// The differences of the weighted sum with respect to one element: left, right, and central.
  struct Slopes {
    double left, right, central;
    /// Returns 0 if `derivative` is between the left and the right slope, else its distance from the central one. If left and
    /// right differ, a point without a derivative is within the step, or the curvature is large; then any value between them is
    /// accepted.
    double distance(double derivative) const {
      const auto [low, high] = std::minmax(left, right);
      return derivative >= low && derivative <= high ? 0 : std::abs(derivative - central);
    }
  };

  Slopes slopes_of(float& value, double step, double here) {
    const float before = value, above = before + static_cast<float>(step), below = before - static_cast<float>(step);
    value = above;
    const double high = trial_.value();
    value = below;
    const double low = trial_.value();
    value = before;
    const double up = static_cast<double>(above) - static_cast<double>(before);
    const double down = static_cast<double>(before) - static_cast<double>(below);
    return {(here - low) / down, (high - here) / up, (high - low) / (up + down)};
  }

  void differences_of(const std::string& name, std::vector<float>& values, const std::vector<float>& derivatives,
                      std::size_t columns) {
    double largest = scale_of(derivatives, first_, 0.01);
    const double here = trial_.value();
    const std::size_t tried = std::min(values.size(), options_.most_elements);
    std::vector<std::pair<std::size_t, Slopes>> differences;
    for (std::size_t i = 0; i < tried; ++i) {
      const std::size_t at = i * values.size() / tried;
      differences.emplace_back(at, slopes_of(values[at], options_.step, here));
      largest = std::max(largest, std::abs(differences.back().second.central));
    }
    largest = std::max(largest, 1e-6);
    for (const auto& [at, slopes] : differences) {
      double error = std::abs(derivatives[at] - slopes.central) / largest;
      if (error > options_.tolerance)  // a smaller step contains fewer points without a derivative
        for (const Slopes& near : {slopes, slopes_of(values[at], options_.step / 8, here)})
          error = std::min(error, near.distance(derivatives[at]) / largest);
      note(error, options_.tolerance, [&, at = at, d = slopes.central] {
        return format("{}: backward gives {:.6g}, central differences give {:.6g}", place(name, at, columns), derivatives[at],
                      d);
      });
    }
  }

  /// Compares passes in a 16-bit type with passes in fp32, on the same inputs and parameters, which are rounded to the 16-bit
  /// type.
  void in_16_bits(DType type) {
    if (!chain_.works_in(type)) return;
    const auto rounded = [&](DType computed) {
      Trial trial(chain_, options_, computed);
      fill_(trial);
      for (std::vector<float>& values : trial.parameters) round_values(type, values);
      if (!chain_.row_sizes.tokens) round_values(type, trial.inputs);
      return trial.run();
    };
    const Results wide = rounded(DType::f32), narrow = rounded(type);
    compare(type, "y", narrow.y, wide.y, y_columns_, largest_of(wide.y));
    const auto compare_derivatives = [&](const std::string& name, const std::vector<float>& of, const std::vector<float>& right,
                                         std::size_t columns) {
      compare(type, name, of, right, columns, scale_of(right, wide, 0.3));
    };
    compare_derivatives("dx", narrow.dx, wide.dx, dx_columns());
    for (std::size_t p = 0; p < wide.gradients.size(); ++p)
      compare_derivatives(parameter(p).name, narrow.gradients[p], wide.gradients[p], parameter(p).shape.back());
  }

  void compare(DType type, const std::string& name, const std::vector<float>& narrow, const std::vector<float>& wide,
               std::size_t columns, double scale) {
    const double largest = std::max(1e-6, scale);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const double error = std::abs(static_cast<double>(narrow[i]) - static_cast<double>(wide[i])) / largest;
      if (error <= options_.tolerance_16_bits) continue;  // only rounding
      note(error, options_.tolerance_16_bits, [&] {
        return format("{}: {:.6g} in {}, {:.6g} in fp32", place(name, i, columns), narrow[i], name_of(type), wide[i]);
      });
    }
  }

  template <class Text>
  void note(double error, double tolerance, Text&& text) {
    const bool passes = error <= tolerance;  // false if `error` is NaN
    if (passes && !result_.passed) return;
    if (passes == result_.passed && (error <= result_.worst || std::isnan(result_.worst))) return;
    result_ = {passes, error, text()};
  }

  /// The number to which errors of these derivatives are relative: the largest of them. If they are 0 but for rounding, as
  /// those of a bias before a norm, it is `share` of the largest derivative of all. What moves a state is no derivative.
  double scale_of(const std::vector<float>& derivatives, const Results& all, double share) const {
    float largest = largest_of(all.dx);
    for (std::size_t p = 0; p < all.gradients.size(); ++p)
      if (trial_.has_gradient(p)) largest = std::max(largest, largest_of(all.gradients[p]));
    const double own = static_cast<double>(largest_of(derivatives)), whole = static_cast<double>(largest);
    return own < 1e-4 * whole ? share * whole : own;
  }

  const Parameter& parameter(std::size_t p) const { return chain_.parameters()[p]; }
  std::size_t dx_columns() const { return chain_.row_sizes.inputs; }

  const Chain& chain_;
  const GradientCheckOptions options_;
  const std::function<void(Trial&)> fill_;
  Trial trial_;
  std::size_t y_columns_ = 1;
  Results first_;
  GradientCheck result_;
};

/// A loss whose value for a row is a weighted sum of the numbers in that row. The targets are the weights.
class WeightedSum final : public Loss {
 public:
  explicit WeightedSum(std::size_t width) : width_(width) {}
  std::size_t inputs() const override { return width_; }
  std::size_t targets() const override { return width_; }
  bool takes_labels() const override { return false; }
  bool works_in(DType) const override { return true; }
  void evaluate(const LossPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      double sum = 0;
      for (std::size_t i = 0; i < width_; ++i) {
        const float weight = pass.targets.row(r)[i];
        sum += static_cast<double>(weight) * static_cast<double>(pass.x.get(r, i));
        if (pass.dx) pass.dx.set(r, i, pass.scale * weight);
      }
      pass.losses[r] = static_cast<float>(sum);
    }
  }

 private:
  std::size_t width_;
};

void require_rows(const GradientCheckOptions& options) {
  if (options.B == 0 || options.T == 0 || options.most_elements == 0)
    throw UserError("nothing would be checked (B, T and most_elements must be at least 1); correct GradientCheckOptions");
  if (!(options.step > 0 && options.tolerance > 0 && options.tolerance_16_bits > 0))
    throw UserError("nothing would be checked (step and tolerances must be above 0); correct GradientCheckOptions");
}

}  // namespace

GradientCheck check_gradients(const Layer& layer, const GradientCheckOptions& options) {
  require_rows(options);
  const Chain chain({{"layer", std::make_shared<PoisonedLayer>(layer)}}, "sum", std::make_shared<WeightedSum>(layer.outputs()),
                    kernels::traits_of_cpu());
  const auto fill = [&](Trial& trial) {
    trial.inputs = trial.normal_numbers(trial.inputs.size(), 1001);
    auto* const tokens = reinterpret_cast<std::int32_t*>(trial.inputs.data());
    for (std::size_t i = 0; i < trial.inputs.size() && layer.takes_tokens(); ++i)
      tokens[i] = static_cast<std::int32_t>(i % 3);  // valid tokens for every vocabulary of at least 3
    trial.targets = trial.normal_numbers(trial.targets.size(), 1002);
  };
  return Check(chain, options, fill).run();
}

GradientCheck check_gradients(const Loss& loss, const GradientCheckOptions& options) {
  require_rows(options);
  const Chain chain({}, "loss", std::make_shared<PoisonedLoss>(loss), kernels::traits_of_cpu());
  const auto classes = static_cast<std::int32_t>(loss.classes() > 0 ? loss.classes() : loss.inputs());
  const auto fill = [&](Trial& trial) {
    trial.inputs = trial.normal_numbers(trial.inputs.size(), 1001);
    trial.targets = trial.normal_numbers(trial.targets.size(), 1002);
    auto* const labels = reinterpret_cast<std::int32_t*>(trial.targets.data());
    for (std::size_t i = 0; i < trial.targets.size() && loss.takes_labels(); ++i)
      labels[i] = static_cast<std::int32_t>(i) % classes - (i == 1 ? classes : 0);  // a negative label: row 1 does not count
  };
  return Check(chain, options, fill).run();
}

}  // namespace fsdp
