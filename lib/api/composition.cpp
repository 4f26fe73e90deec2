#include "api/composition.hpp"

#include <algorithm>
#include <set>

#include "api/ops.hpp"
#include "api/place.hpp"
#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

/// An inner layer, and the places of its parameters and saved numbers among those of the whole.
struct Inner {
  std::string name;
  LayerPtr layer;
  std::size_t parameter = 0, parameters = 0, saved = 0, floats = 0;
};

/// What all layers with inner layers have in common. Scratch memory begins with that of the inner layer that runs.
class Composition : public Layer {
 public:
  Composition(const char* function, const NamedLayers& layers) {
    if (layers.empty()) throw UserError(format("{}() has no layers; give it at least one", function));
    std::set<std::string> names;
    for (const auto& [name, layer] : layers) {
      if (!layer) throw UserError(format("layer '{}' of {}() is null; give a layer", name, function));
      if (layer->takes_tokens())
        throw UserError(
            format("layer '{}' of {}() takes tokens (only the first layer of a model can); put it first", name, function));
      if (!names.insert(name).second || (name.empty() && layers.size() > 1))
        throw UserError(
            format("a layer of {}() has the name '{}' (each needs a unique name); choose another name", function, name));
      Inner& one = inner_.emplace_back(Inner{name, layer, parameters_.size(), 0, saved_, floats_});
      for (LayerParameter& parameter : layer->parameters()) {
        if (!name.empty()) parameter.name = name + "." + parameter.name;
        parameters_.push_back(std::move(parameter));
      }
      one.parameters = parameters_.size() - one.parameter;
      saved_ += layer->saved(), floats_ += layer->saved_floats();
      scratch_ = std::max(scratch_, layer->scratch());
    }
  }
  std::vector<LayerParameter> parameters() const final { return parameters_; }
  std::size_t inputs() const override { return inner_.front().layer->inputs(); }
  std::size_t outputs() const override { return inner_.back().layer->outputs(); }
  std::size_t saved() const override { return saved_; }
  std::size_t saved_floats() const final { return floats_; }
  std::size_t scratch() const override { return scratch_; }
  bool works_in(DType type) const final {
    return std::all_of(inner_.begin(), inner_.end(), [&](const Inner& one) { return one.layer->works_in(type); });
  }
  bool works_on_gpu() const final {
    return std::all_of(inner_.begin(), inner_.end(), [](const Inner& one) { return one.layer->works_on_gpu(); });
  }
  void check_batch(std::size_t B, std::size_t T) const final {
    for (const Inner& one : inner_) one.layer->check_batch(B, T);
  }

 protected:
  const std::vector<Inner>& inner() const { return inner_; }
  std::size_t saved_of_inner() const { return saved_; }
  std::size_t scratch_of_inner() const { return scratch_; }

  void forward(const ForwardPass& whole, const Inner& one, const Tensor& x, const Tensor& y) const {
    ForwardPass pass = whole;
    prepare(pass, one, x);
    pass.y = y;
    one.layer->forward(pass);
  }
  void backward(const BackwardPass& whole, const Inner& one, const Tensor& x, const Tensor& dy, const Tensor& dx) const {
    BackwardPass pass = whole;
    prepare(pass, one, x);
    pass.dy = dy, pass.dx = dx;
    if (pass.gradients) pass.gradients += one.parameter;
    one.layer->backward(pass);
  }

 private:
  template <class AnyPass>
  static void prepare(AnyPass& pass, const Inner& one, const Tensor& x) {
    pass.x = x;
    pass.place = place_of(one.name, pass.place);
    pass.saved = pass.saved.part(one.saved, one.layer->saved());
    pass.stats = pass.stats.part(one.floats, one.layer->saved_floats());
    pass.scratch = pass.scratch.part(0, one.layer->scratch());
    pass.weights += one.parameter;
    pass.parameters = pass.parameters.subspan(one.parameter, one.parameters);
  }

  std::vector<Inner> inner_;
  std::vector<LayerParameter> parameters_;
  std::size_t saved_ = 0, floats_ = 0, scratch_ = 0;
};

class Chained final : public Composition {
 public:
  explicit Chained(const NamedLayers& layers) : Composition("sequential", layers) {
    for (std::size_t i = 1; i < layers.size(); ++i) {
      const std::size_t given = layers[i - 1].second->outputs(), taken = layers[i].second->inputs();
      if (given != taken)
        throw UserError(format("layer '{}' takes {} numbers per row (the layer before it gives {}); make them equal",
                               layers[i].first, taken, given));
      between_.push_back(saved_of_inner() + width_);
      width_ += given, widest_ = std::max(widest_, given);
    }
  }
  std::size_t saved() const override { return saved_of_inner() + width_; }
  std::size_t scratch() const override { return scratch_of_inner() + 2 * widest_; }

  void forward(const ForwardPass& pass) const override {
    const std::size_t last = inner().size() - 1;
    for (std::size_t i = 0; i <= last; ++i)
      Composition::forward(pass, inner()[i], input(pass, i), i == last ? pass.y : input(pass, i + 1));
  }
  void backward(const BackwardPass& pass) const override {
    Tensor dy = pass.dy;
    for (std::size_t i = inner().size(); i-- > 0;) {
      const std::size_t place = scratch_of_inner() + i % 2 * widest_;
      const Tensor dx = i == 0 ? pass.dx : pass.scratch.part(place, inner()[i].layer->inputs());
      Composition::backward(pass, inner()[i], input(pass, i), dy, dx);
      dy = dx;
    }
  }

 private:
  /// The input of inner layer i; those after the first one are saved.
  template <class AnyPass>
  Tensor input(const AnyPass& pass, std::size_t i) const {
    return i == 0 ? pass.x : pass.saved.part(between_[i - 1], inner()[i].layer->inputs());
  }

  std::vector<std::size_t> between_;  // where the outputs between layers begin in `saved`
  std::size_t width_ = 0, widest_ = 0;
};

class Residual final : public Composition {
 public:
  explicit Residual(LayerPtr layer) : Composition("residual", {{"", std::move(layer)}}) {
    if (inputs() != outputs())
      throw UserError(format("residual() adds {} outputs to {} inputs; make them equal", outputs(), inputs()));
  }
  std::size_t scratch() const override { return scratch_of_inner() + outputs(); }

  void forward(const ForwardPass& pass) const override {
    Composition::forward(pass, inner().front(), pass.x, pass.y);
    ops::add(pass, pass.y, pass.y, pass.x);
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor dy = pass.scratch.part(scratch_of_inner(), outputs());  // the inner layer may change its own
    ops::copy(pass, dy, pass.dy);
    Composition::backward(pass, inner().front(), pass.x, pass.dy, pass.dx);
    if (pass.dx) ops::add(pass, pass.dx, pass.dx, dy);
  }
};

class Parallel final : public Composition {
 public:
  explicit Parallel(const NamedLayers& layers) : Composition("parallel", layers) {
    const Layer& first = *layers.front().second;
    for (const auto& [name, layer] : layers)
      if (layer->inputs() != first.inputs() || layer->outputs() != first.outputs())
        throw UserError(
            format("layer '{}' of parallel() has {} inputs and {} outputs, the first one {} and {}; make them equal", name,
                   layer->inputs(), layer->outputs(), first.inputs(), first.outputs()));
  }
  std::size_t scratch() const override { return scratch_of_inner() + inputs() + outputs(); }

  void forward(const ForwardPass& pass) const override {
    const Tensor more = pass.scratch.part(scratch_of_inner(), outputs());
    for (const Inner& one : inner()) {
      const bool first = &one == &inner().front();
      Composition::forward(pass, one, pass.x, first ? pass.y : more);
      if (!first) ops::add(pass, pass.y, pass.y, more);
    }
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor more = pass.scratch.part(scratch_of_inner(), inputs()),
                 dy = pass.scratch.part(scratch_of_inner() + inputs(), outputs());
    for (const Inner& one : inner()) {
      const bool first = &one == &inner().front();
      ops::copy(pass, dy, pass.dy);  // each inner layer may change its own
      Composition::backward(pass, one, pass.x, dy, first || !pass.dx ? pass.dx : more);
      if (!first && pass.dx) ops::add(pass, pass.dx, pass.dx, more);
    }
  }
};

}  // namespace

LayerPtr sequential(const NamedLayers& layers) { return std::make_shared<Chained>(layers); }
LayerPtr residual(LayerPtr layer) { return std::make_shared<Residual>(std::move(layer)); }
LayerPtr parallel(const NamedLayers& layers) { return std::make_shared<Parallel>(layers); }
LayerPtr repeat(std::size_t count, const std::function<LayerPtr(std::size_t)>& make) {
  NamedLayers layers;
  for (std::size_t i = 0; i < count; ++i) layers.emplace_back(std::to_string(i), make(i));
  return sequential(layers);
}

}  // namespace fsdp
