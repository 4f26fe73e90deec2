#include "layers/composition.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/error.hpp"
#include "base/format.hpp"
#include "layers/by_batch.hpp"
#include "layers/ops.hpp"
#include "layers/place.hpp"
#include "layers/proof.hpp"
#include "nn/model.hpp"

namespace fsdp {

/// The memory of the inner layers for a batch: of each, and the sums of saved numbers of those before it.
struct Composition::InnerSizes {
  std::vector<MemorySizes> each, before;
  MemorySizes all;
};

Composition::Composition(const std::string& function, NamedLayers layers)
    : layers_(std::move(layers)), inner_(std::make_shared<ByBatch<InnerSizes>>()) {
  if (layers_.empty()) throw UserError(format("{}() has no layers; give it at least one", function));
  std::set<std::string> names;
  for (const auto& [name, layer] : layers_) {
    if (!layer) throw UserError(format("layer '{}' of {}() is null; give a layer", name, function));
    if (!names.insert(name).second || (name.empty() && layers_.size() > 1))
      throw UserError(
          format("a layer of {}() has the name '{}' (each needs a unique name); choose another name", function, name));
    const std::vector<LayerParameter> own = layer->parameters();
    places_.push_back({parameters_.size(), own.size()});
    for (LayerParameter parameter : own) {
      if (!name.empty()) parameter.name = name + "." + parameter.name;
      parameters_.push_back(std::move(parameter));
    }
    saved_ += layer->saved(), floats_ += layer->saved_floats();
    scratch_ = std::max(scratch_, layer->scratch());
    gathers_ += layer->gathers();
  }
}

std::size_t Composition::vocabulary() const {
  std::size_t least = 0;
  for (const auto& [name, layer] : layers_)
    if (const std::size_t n = layer->vocabulary(); n > 0) least = least == 0 ? n : std::min(least, n);
  return least;
}

bool Composition::works_in(DType type) const {
  return std::all_of(layers_.begin(), layers_.end(), [&](const auto& one) { return one.second->works_in(type); });
}

bool Composition::works_on_gpu() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& one) { return one.second->works_on_gpu(); });
}

void Composition::check_batch(std::size_t B, std::size_t T) const {
  for (const auto& [name, layer] : layers_) layer->check_batch(B, T);
}

namespace {

/// Copies y to pass.inner. If residual() has a layer with a name, both have the same place; the outer one is copied last.
void copy_outputs(const ForwardPass& pass) {
  const std::size_t row = pass.y.columns * size_of(pass.y.type);
  pass.inner->numbers.resize(pass.y.rows * row);
  for (std::size_t r = 0; r < (pass.y.is_dense() ? 1 : pass.y.rows); ++r)
    pass.stream->copy(pass.inner->numbers.data() + r * row,
                      static_cast<const std::byte*>(pass.y.data) + r * pass.y.stride * size_of(pass.y.type),
                      pass.y.is_dense() ? pass.inner->numbers.size() : row);
}

}  // namespace
const Composition::InnerSizes& Composition::sizes_of_inner(const BatchSizes& batch) const {
  return inner_->get(batch, [&] {
    InnerSizes sizes;
    for (const auto& [name, layer] : layers_) {
      const MemorySizes one = layer->sizes(batch);
      sizes.each.push_back(one), sizes.before.push_back(sizes.all);
      sizes.all.saved += one.saved, sizes.all.saved_floats += one.saved_floats;
      sizes.all.scratch = std::max(sizes.all.scratch, one.scratch);
    }
    return sizes;
  });
}

MemorySizes Composition::inner_sizes(const BatchSizes& batch) const { return sizes_of_inner(batch).all; }

MemorySizes Composition::with_own(const BatchSizes& batch) const {
  const MemorySizes inner = inner_sizes(batch);
  return {inner.saved + saved() - saved_, inner.saved_floats + saved_floats() - floats_, inner.scratch + scratch() - scratch_};
}

MemorySizes Composition::sizes(const BatchSizes& batch) const {
  const MemorySizes inner = inner_sizes(batch);
  const auto moves = [](std::size_t whole, std::size_t fixed, std::size_t now) { return whole != fixed && now != fixed; };
  if (moves(saved(), saved_, inner.saved) || moves(saved_floats(), floats_, inner.saved_floats) ||
      moves(scratch(), scratch_, inner.scratch))
    throw UserError(
        format("a layer of layers has memory of its own after that of '{}' and its other layers (whose sizes depend on the "
               "batch); let its own memory begin at inner_sizes(pass), and return with_own(batch) in sizes()",
               layers_.front().first));
  return with_own(batch);
}

template <class AnyPass>
void Composition::prepare(AnyPass& pass, std::size_t i, const Tensor& x) const {
  const Place& place = places_.at(i);
  const InnerSizes& sizes = sizes_of_inner(pass);
  const MemorySizes &own = sizes.each[i], &before = sizes.before[i];
  pass.x = x;
  pass.place = place_of(layers_[i].first, pass.place);
  pass.saved = pass.saved.part(before.saved, own.saved);
  pass.stats = pass.stats.part(before.saved_floats, own.saved_floats);
  pass.scratch = pass.scratch.part(0, own.scratch);
  pass.parameters = pass.parameters.subspan(place.parameter, place.parameters);
  pass.indices = pass.indices.subspan(place.parameter, place.parameters);
}

void Composition::run_forward(const ForwardPass& whole, std::size_t i, const Tensor& x, const Tensor& y) const {
  ForwardPass pass = whole;
  prepare(pass, i, x);
  pass.y = y;
  run_pass(pass, "forward()", layers_[i].first, y, "y", {}, [&] { layers_[i].second->forward(pass); });
  if (pass.inner && pass.inner->place == pass.place) copy_outputs(pass);
}

void Composition::run_backward(const BackwardPass& whole, std::size_t i, const Tensor& x, const Tensor& dy,
                               const Tensor& dx) const {
  BackwardPass pass = whole;
  prepare(pass, i, x);
  pass.dy = dy, pass.dx = dx;
  run_pass(pass, "backward()", layers_[i].first, dx, "dx", dy, [&] { layers_[i].second->backward(pass); });
}

namespace {

/// Throws UserError for a layer of tokens, which `function`() cannot contain.
void require_no_tokens(const char* function, const NamedLayers& layers) {
  for (const auto& [name, layer] : layers)
    if (layer && layer->takes_tokens())
      throw UserError(
          format("layer '{}' of {}() takes tokens (only the first layer of a model can); put it first", name, function));
}

bool any_looks_ahead(const NamedLayers& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const auto& each) { return each.second->looks_ahead(); });
}

/// Compositions of the library, whose own memory begins at inner_sizes().
class BuiltComposition : public Composition {
 public:
  using Composition::Composition;
  MemorySizes sizes(const BatchSizes& batch) const override { return with_own(batch); }
};

class Chained : public BuiltComposition {
 public:
  explicit Chained(const NamedLayers& layers, const char* function = "sequential") : BuiltComposition(function, layers) {
    require_no_tokens(function, layers);
    for (std::size_t i = 1; i < layers.size(); ++i) {
      require_fit(layers[i - 1], layers[i]);
      between_.push_back(width_);
      const std::size_t given = layers[i - 1].second->outputs();
      width_ += given, widest_ = std::max(widest_, given);
    }
  }
  bool looks_ahead() const override { return any_looks_ahead(layers()); }
  std::size_t saved() const override { return Composition::saved() + width_; }
  std::size_t scratch() const override { return Composition::scratch() + 2 * widest_; }

  void forward(const ForwardPass& pass) const override {
    const std::size_t last = layers().size() - 1, own = inner_sizes(pass).saved;
    for (std::size_t i = 0; i <= last; ++i)
      run_forward(pass, i, input(pass, own, i), i == last ? pass.y : input(pass, own, i + 1));
  }
  void backward(const BackwardPass& pass) const override {
    const MemorySizes own = inner_sizes(pass);
    Tensor dy = pass.dy;
    for (std::size_t i = layers().size(); i-- > 0;) {
      const std::size_t place = own.scratch + i % 2 * widest_;
      const Tensor dx = i == 0 ? pass.dx : pass.scratch.part(place, layers()[i].second->inputs());
      run_backward(pass, i, input(pass, own.saved, i), dy, dx);
      dy = dx;
    }
  }

 private:
  /// The input of inner layer i; those after the first one are saved, from `own` on.
  template <class AnyPass>
  Tensor input(const AnyPass& pass, std::size_t own, std::size_t i) const {
    return i == 0 ? pass.x : pass.saved.part(own + between_[i - 1], layers()[i].second->inputs());
  }

  std::vector<std::size_t> between_;  // where the outputs between layers begin in the own part of `saved`
  std::size_t width_ = 0, widest_ = 0;
};

class Repeated final : public Chained {
 public:
  explicit Repeated(const NamedLayers& layers) : Chained(layers, "repeat") {}
};

/// What the layers below have in common: one inner layer without a name.
class Around : public BuiltComposition {
 public:
  Around(const char* function, LayerPtr layer) : BuiltComposition(function, {{"", std::move(layer)}}) {
    require_no_tokens(function, layers());
  }
  bool looks_ahead() const override { return any_looks_ahead(layers()); }

 protected:
  const Layer& inner() const { return *layers().front().second; }
};

class Residual final : public Around {
 public:
  explicit Residual(LayerPtr layer) : Around("residual", std::move(layer)) {
    if (inner().inputs() < inner().outputs())
      throw UserError(format("residual() adds {} outputs to {} inputs; make them equal", inner().outputs(), inner().inputs()));
  }
  std::size_t outputs() const override { return inputs(); }
  std::size_t scratch() const override {
    return Composition::scratch() + (inputs() > inner().outputs() ? 2 : 1) * inner().outputs();
  }

  void forward(const ForwardPass& pass) const override {
    const std::size_t m = inner().outputs(), rest = inputs() - m;
    if (rest == 0) {
      run_forward(pass, 0, pass.x, pass.y);
      return ops::add(pass, pass.y, pass.y, pass.x);
    }
    const std::size_t own = inner_sizes(pass).scratch;
    const Tensor branch = pass.scratch.part(own, m), sum = pass.scratch.part(own + m, m);
    run_forward(pass, 0, pass.x, branch);
    ops::copy(pass, sum, pass.x.columns_from(0, m));
    ops::add(pass, sum, branch, sum);
    ops::copy(pass, pass.y.columns_from(0, m), sum);
    ops::copy(pass, pass.y.columns_from(m, rest), pass.x.columns_from(m, rest));
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor dy = pass.scratch.part(inner_sizes(pass).scratch, inner().outputs());  // the inner layer may change it
    ops::copy(pass, dy, pass.dy.columns_from(0, inner().outputs()));
    run_backward(pass, 0, pass.x, dy, pass.dx);
    if (pass.dx) ops::add(pass, pass.dx, pass.dx, pass.dy);
  }
};

class Parallel final : public BuiltComposition {
 public:
  Parallel(const NamedLayers& layers, Join join) : BuiltComposition("parallel", layers), join_(join) {
    const auto& [first_name, first] = layers.front();
    for (const auto& [name, layer] : layers) {
      const bool other_kind = layer->takes_tokens() != first->takes_tokens();
      if (layer->inputs() != first->inputs() || other_kind || (join == Join::sum && layer->outputs() != first->outputs()))
        throw UserError(format("layer '{}' of parallel() maps {}{} to {}, and layer '{}' {}{} to {}{}; make them equal", name,
                               layer->inputs(), layer->takes_tokens() ? " token" : "", layer->outputs(), first_name,
                               first->inputs(), first->takes_tokens() ? " token" : "", first->outputs(),
                               other_kind ? " (one takes tokens, the other numbers, and a batch has one of these)" : ""));
      begin_.push_back(outputs_);
      outputs_ += layer->outputs();
      widest_ = std::max(widest_, layer->outputs());
    }
    if (join == Join::sum) outputs_ = first->outputs();
  }
  std::size_t outputs() const override { return outputs_; }
  bool takes_tokens() const override { return layers().front().second->takes_tokens(); }
  bool looks_ahead() const override { return any_looks_ahead(layers()); }
  std::size_t scratch() const override { return Composition::scratch() + widest_ + inputs(); }

  void forward(const ForwardPass& pass) const override {
    const std::size_t own = inner_sizes(pass).scratch;
    for (std::size_t i = 0; i < layers().size(); ++i) {
      const std::size_t width = layers()[i].second->outputs();
      const Tensor part = pass.scratch.part(own, width);
      const bool is_sum = join_ == Join::sum;
      run_forward(pass, i, pass.x, is_sum && i == 0 ? pass.y : part);
      if (is_sum && i > 0) ops::add(pass, pass.y, pass.y, part);
      if (!is_sum) ops::copy(pass, pass.y.columns_from(begin_[i], width), part);
    }
  }
  void backward(const BackwardPass& pass) const override {
    const std::size_t own = inner_sizes(pass).scratch;
    const Tensor more = pass.scratch.part(own + widest_, inputs());
    for (std::size_t i = 0; i < layers().size(); ++i) {
      const std::size_t width = layers()[i].second->outputs();
      const Tensor dy = pass.scratch.part(own, width);  // each inner layer may change its own
      ops::copy(pass, dy, join_ == Join::sum ? pass.dy : pass.dy.columns_from(begin_[i], width));
      run_backward(pass, i, pass.x, dy, i == 0 || !pass.dx ? pass.dx : more);
      if (i > 0 && pass.dx) ops::add(pass, pass.dx, pass.dx, more);
    }
  }

 private:
  const Join join_;
  std::vector<std::size_t> begin_;  // the first column of each layer's outputs
  std::size_t outputs_ = 0, widest_ = 0;
};

class KeepColumns final : public Around {
 public:
  KeepColumns(std::size_t count, LayerPtr layer) : Around("keep_columns", std::move(layer)), count_(count) {
    if (count > std::size_t{1} << 30)
      throw UserError(format("keep_columns() keeps {} columns (it is at most 2^30); correct the number", as_given(count)));
  }
  std::size_t inputs() const override { return inner().inputs() + count_; }
  std::size_t outputs() const override { return inner().outputs() + count_; }
  std::size_t scratch() const override { return Composition::scratch() + 2 * inner().inputs() + inner().outputs(); }

  void forward(const ForwardPass& pass) const override {
    const Tensor x = input(pass), y = output(pass);
    run_forward(pass, 0, x, y);
    ops::copy(pass, pass.y.columns_from(0, inner().outputs()), y);
    ops::copy(pass, kept(pass.y), kept(pass.x));
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor x = input(pass), dy = output(pass), dx = input_memory(pass, 1);
    ops::copy(pass, dy, pass.dy.columns_from(0, inner().outputs()));
    run_backward(pass, 0, x, dy, pass.dx ? dx : Tensor());
    if (!pass.dx) return;
    ops::copy(pass, pass.dx.columns_from(0, inner().inputs()), dx);
    ops::copy(pass, kept(pass.dx), kept(pass.dy));
  }

 private:
  Tensor input_memory(const Pass& pass, std::size_t i) const {
    return pass.scratch.part(inner_sizes(pass).scratch + i * inner().inputs(), inner().inputs());
  }
  Tensor output(const Pass& pass) const {
    return pass.scratch.part(inner_sizes(pass).scratch + 2 * inner().inputs(), inner().outputs());
  }
  Tensor kept(const Tensor& whole) const { return whole.columns_from(whole.columns - count_, count_); }
  Tensor input(const Pass& pass) const {
    const Tensor x = input_memory(pass, 0);
    ops::copy(pass, x, pass.x.columns_from(0, inner().inputs()));
    return x;
  }

  const std::size_t count_;
};

class SelectColumns final : public Layer {
 public:
  SelectColumns(std::size_t width, std::size_t begin, std::size_t count) : width_(width), begin_(begin), count_(count) {
    if (count == 0 || begin > width || count > width - begin)
      throw UserError(
          format("select_columns({}, {}, {}): these columns do not exist (the input has {}, and at least one must be "
                 "selected); correct the numbers",
                 as_given(width), as_given(begin), as_given(count), as_given(width)));
  }
  std::size_t inputs() const override { return width_; }
  std::size_t outputs() const override { return count_; }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  bool looks_ahead() const override { return false; }
  void forward(const ForwardPass& pass) const override { ops::copy(pass, pass.y, pass.x.columns_from(begin_, count_)); }
  void backward(const BackwardPass& pass) const override {
    ops::fill_zero(pass, pass.dx);
    ops::copy(pass, pass.dx.columns_from(begin_, count_), pass.dy);
  }

 private:
  const std::size_t width_, begin_, count_;
};

class PerPosition final : public Around {
 public:
  PerPosition(std::size_t n, LayerPtr layer) : Around("positions", std::move(layer)), n_(n) {
    if (n == 0 || n > std::size_t{1} << 30)
      throw UserError(format("positions() has {} positions (it is from 1 to 2^30); correct the number", as_given(n)));
  }
  std::size_t inputs() const override { return n_ * inner().inputs(); }
  std::size_t outputs() const override { return n_ * inner().outputs(); }
  bool looks_ahead() const override { return false; }  // its positions are in a row
  std::size_t saved() const override { return n_ * Composition::saved(); }
  std::size_t saved_floats() const override { return n_ * Composition::saved_floats(); }
  std::size_t scratch() const override { return n_ * Composition::scratch(); }
  MemorySizes sizes(const BatchSizes& batch) const override {
    MemorySizes sizes = inner_sizes(inside(batch));
    sizes.saved *= n_, sizes.saved_floats *= n_, sizes.scratch *= n_;
    return sizes;
  }
  void check_batch(std::size_t B, std::size_t T) const override { inner().check_batch(B * T, n_); }

  void forward(const ForwardPass& pass) const override {
    ForwardPass inner = pass;
    enter(inner);
    run_forward(inner, 0, rows_of(pass.x), rows_of(pass.y));
  }
  void backward(const BackwardPass& pass) const override {
    BackwardPass inner = pass;
    enter(inner);
    run_backward(inner, 0, rows_of(pass.x), rows_of(pass.dy), rows_of(pass.dx));
  }

 private:
  /// Each row becomes a sequence.
  BatchSizes inside(BatchSizes batch) const {
    batch.B = batch.rows(), batch.T = n_;
    return batch;
  }
  Tensor rows_of(const Tensor& x) const { return x ? Tensor{x.data, x.rows * n_, x.columns / n_, x.columns / n_, x.type} : x; }
  template <class AnyPass>
  void enter(AnyPass& pass) const {
    pass.first_sequence *= pass.T;
    static_cast<BatchSizes&>(pass) = inside(pass);
    pass.saved = rows_of(pass.saved), pass.stats = rows_of(pass.stats), pass.scratch = rows_of(pass.scratch);
  }

  const std::size_t n_;
};

}  // namespace

LayerPtr sequential(const NamedLayers& layers) { return std::make_shared<Chained>(layers); }
LayerPtr residual(LayerPtr layer) { return std::make_shared<Residual>(std::move(layer)); }
LayerPtr parallel(const NamedLayers& layers, Join join) { return std::make_shared<Parallel>(layers, join); }
LayerPtr repeat(std::size_t count, const std::function<LayerPtr(std::size_t)>& make) {
  NamedLayers layers;
  if (count > 0) require_size("repeat", "count", count);
  if (!make) throw UserError("the function that makes the layers of repeat() is null; give one");
  for (std::size_t i = 0; i < count; ++i) layers.emplace_back(std::to_string(i), make(i));
  return std::make_shared<Repeated>(layers);
}
LayerPtr keep_columns(std::size_t count, LayerPtr layer) { return std::make_shared<KeepColumns>(count, std::move(layer)); }
LayerPtr select_columns(std::size_t width, std::size_t begin, std::size_t count) {
  return std::make_shared<SelectColumns>(width, begin, count);
}
LayerPtr positions(std::size_t n, LayerPtr layer) { return std::make_shared<PerPosition>(n, std::move(layer)); }

void require_fit(const std::pair<std::string, LayerPtr>& before, const std::pair<std::string, LayerPtr>& layer) {
  if (layer.second->inputs() != before.second->outputs())
    throw UserError(format("layer '{}' takes {} numbers per row (layer '{}' before it gives {}); make them equal", layer.first,
                           layer.second->inputs(), before.first, before.second->outputs()));
}

void require_separate(const NamedLayers& layers) {
  std::map<const Layer*, std::string> seen;
  const std::function<void(const std::string&, const NamedLayers&)> visit = [&](const std::string& prefix,
                                                                                const NamedLayers& all) {
    for (const auto& [name, layer] : all) {
      const std::string whole = prefix + (prefix.empty() || name.empty() ? "" : ".") + name;
      if (layer->parameters().empty()) continue;
      const auto [there, is_new] = seen.emplace(layer.get(), whole);
      if (!is_new)
        throw UserError(
            format("layers '{}' and '{}' are one object (each would have parameters of its own); make two objects, and share "
                   "parameters by Sequential::tie() if they should be the same",
                   there->second, whole));
      if (const auto* const inner = dynamic_cast<const Composition*>(layer.get())) visit(whole, inner->layers());
    }
  };
  visit("", layers);
}

bool is_of_embeddings(const Layer& layer) {
  const auto* const whole = dynamic_cast<const Parallel*>(&layer);
  if (!whole) return is_embedding(layer);
  return std::all_of(whole->layers().begin(), whole->layers().end(),
                     [](const auto& one) { return is_of_embeddings(*one.second); });
}

std::vector<std::string> inner_names(const std::string& name, const Layer& layer) {
  std::vector<std::string> all;
  const auto* const whole = dynamic_cast<const Composition*>(&layer);
  if (!whole) return all;
  for (const auto& [inner, part] : whole->layers()) {
    const std::string full = inner.empty() ? name : name + "." + inner;
    if (!inner.empty()) all.push_back(full);
    const std::vector<std::string> deeper = inner_names(full, *part);
    all.insert(all.end(), deeper.begin(), deeper.end());
  }
  return all;
}

NamedLayers without_repeats(const NamedLayers& layers) {
  NamedLayers flat;
  for (const auto& [name, layer] : layers) {
    const auto* const repeated = dynamic_cast<const Repeated*>(layer.get());
    if (!repeated) {
      flat.emplace_back(name, layer);
      continue;
    }
    NamedLayers inner = repeated->layers();
    for (auto& [index, one] : inner) index = name + "." + index;
    inner = without_repeats(inner);
    flat.insert(flat.end(), inner.begin(), inner.end());
  }
  return flat;
}

}  // namespace fsdp
