#include "layers/chain.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "kernels/offsets.hpp"
#include "layers/gathering.hpp"
#include "layers/ops.hpp"
#include "layers/place.hpp"

namespace fsdp {

namespace {

/// The layout of what a layer saves, as offsets in floats: numbers in `type`, then `stats`.
struct SavedLayout {
  MemorySizes sizes;
  std::size_t R;
  DType type;
  Offsets at{size_of(type)};
  std::size_t values = at.take_values(R * sizes.saved), stats = at.take(R * sizes.saved_floats), end = at.end();
};

Tensor dense(void* data, std::size_t rows, std::size_t columns, DType type) {
  return {columns > 0 ? data : nullptr, rows, columns, columns, type};
}

/// Sets pass.saved and pass.stats, which are in the memory `saved` of the layer.
template <class P>
void give_saved(P& pass, const Layer& layer, float* saved) {
  const SavedLayout layout{layer.sizes(pass), pass.rows(), pass.type};
  pass.saved = dense(saved, layout.R, layout.sizes.saved, pass.type);
  pass.stats = dense(saved + layout.stats, layout.R, layout.sizes.saved_floats, DType::f32);
}

template <class... Errors>
bool is_one_of(const std::exception& error) {
  return (dynamic_cast<const Errors*>(&error) || ...);
}

/// Runs `work`. If `work` throws a UserError, or an exception that is not the library's, puts the name of the layer or loss
/// before the message.
template <class Work>
void naming(const char* what, const std::string& name, Work&& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (is_one_of<RunError, CallError, InternalError, std::bad_alloc>(error)) throw;
    const std::string text = format("{} '{}': {}", what, name, error.what());
    if (is_one_of<UserError>(error)) throw UserError(text);
    throw RunError(text);
  } catch (...) {
    throw RunError(format("{} '{}' threw an exception that is no std::exception; throw one that has a message", what, name));
  }
}

/// Throws UserError if one of the sizes (numbers per row) is so large that sizes in bytes could overflow.
void require_sane(const char* what, const std::string& name, std::initializer_list<std::size_t> numbers) {
  constexpr std::size_t most = std::size_t{1} << 30;
  for (const std::size_t n : numbers)
    if (n > most)
      throw UserError(format("{} '{}' needs {} numbers (per row, or to gather, they are at most 2^30); correct its sizes", what,
                             name, as_given(n)));
}

void require_saves_nothing(const std::string& name, const MemorySizes& own) {
  if (own.saved + own.saved_floats > 0)
    throw UserError(format(
        "layer '{}' takes tokens and saves numbers (a layer of tokens has no memory for that); recompute them in backward",
        name));
}

/// Checks the full name of a parameter. It becomes the name of an HDF5 dataset, which is a path, so it must not contain "/".
void require_name(const std::string& whole) {
  constexpr std::size_t most = 255;
  const auto is_right = [](unsigned char c) { return c > ' ' && c < 127 && c != '/'; };
  if (whole.size() > most || !std::all_of(whole.begin(), whole.end(), is_right))
    throw UserError(
        format("'{}' is not a valid name of a parameter (checkpoints allow at most {} characters of ASCII, without spaces, '/' "
               "and control characters); choose another name",
               printable(whole.substr(0, most)), most));
}

}  // namespace

/// The layout of scratch memory, as offsets in floats: partial sums, gradients of parameters that are not trained, losses, one
/// activation, and then the scratch memory of the layer, whose size depends on the layer.
struct Chain::Scratch {
  const Chain& chain;
  BatchShape shape;
  DType type;
  Offsets at{size_of(type)};
  std::size_t sums = at.take(kernels::column_sum_scratch(chain.most_columns_, chain.device_));
  std::size_t unwanted = at.take(2 * chain.most_columns_), losses = at.take(shape.rows()), nexts = at.take(chain.most_state_);
  std::size_t activation = at.take_values(chain.most_numbers(shape)), own = at.end();
};

/// Prepares the input: a layer that takes tokens or, without one, a copy of the batch's numbers.
class Chain::First final : public InputStage {
 public:
  explicit First(const Chain& chain) : InputStage(chain.title_of(chain.first_), chain.first_.indices), chain_(chain) {}

  void forward(const StageContext& context, const std::int32_t* inputs, void* x) const override {
    chain_.read_input(context, chain_.first_, inputs, x);
  }

  void backward(const StageContext& context, const std::int32_t* inputs, const void* dx, kernels::Write write) const override {
    if (chain_.first_.layer) chain_.backward(context, chain_.first_, inputs, dx, nullptr, nullptr, write);
  }

 private:
  const Chain& chain_;
};

/// A stage between the first and the last one. In a tower, x and dx also have what earlier towers have given, after its own
/// numbers.
class Chain::Inner : public BlockStage {
 public:
  Inner(const Chain& chain, const Part& part) : BlockStage(chain.title_of(part), part.indices), chain_(chain), part_(part) {}

 protected:
  void* activation(const StageContext& context) const {
    return context.scratch + Scratch{chain_, context.shape, context.type}.activation;
  }
  /// The bytes of the stage's own outputs.
  std::size_t outputs(const StageContext& context) const {
    return chain_.outputs_of(part_, context.shape) * size_of(context.type);
  }
  /// Copies what earlier towers have given, which begins at these bytes.
  void pass_on(const StageContext& context, void* to, std::size_t to_byte, const void* from, std::size_t from_byte) const {
    const std::size_t bytes = context.shape.B * part_.tower.carried * size_of(context.type);
    if (bytes > 0)
      context.stream.copy(static_cast<std::byte*>(to) + to_byte, static_cast<const std::byte*>(from) + from_byte, bytes);
  }

  const Chain& chain_;
  const Part& part_;
};

class Chain::Block final : public Inner {
 public:
  using Inner::Inner;

  void forward(const StageContext& context, const void* x_in, void* x_out, float* saved) const override {
    chain_.forward(context, part_, x_in, x_out ? x_out : activation(context), saved);
    if (x_out) pass_on(context, x_out, outputs(context), x_in, inputs(context));
  }

  void backward(const StageContext& context, const void* x_in, float* saved, void* dx, kernels::Write write) const override {
    // The library passes dy in the memory of dx. A layer may write dx while it reads dy, so dy is copied first.
    void* const dy = activation(context);
    context.stream.copy(dy, dx, outputs(context));
    pass_on(context, dy, outputs(context), dx, outputs(context));
    chain_.backward(context, part_, x_in, dy, dx, saved, write);
    pass_on(context, dx, inputs(context), dy, outputs(context));
  }

 private:
  std::size_t inputs(const StageContext& context) const {
    return chain_.batch_of(context.shape, context.type, part_).rows() * part_.layer->inputs() * size_of(context.type);
  }
};

/// The first stage of a tower, which reads its input from the batch.
class Chain::TowerBegin final : public Inner {
 public:
  using Inner::Inner;

  void forward(const StageContext& context, const void* x_in, void* x_out, float*) const override {
    if (!x_out) return;
    chain_.read_input(context, part_, context.inputs, x_out);
    pass_on(context, x_out, outputs(context), x_in, 0);
  }

  void backward(const StageContext& context, const void*, float*, void* dx, kernels::Write write) const override {
    const auto is_wanted = [&](std::size_t index) { return context.gradients[index] != nullptr; };
    if (std::any_of(part_.indices.begin(), part_.indices.end(), is_wanted))
      chain_.backward(context, part_, chain_.input_of(part_, context.shape, context.inputs), dx, nullptr, nullptr, write);
    void* const before = activation(context);  // the two places in dx may overlap
    pass_on(context, before, 0, dx, outputs(context));
    pass_on(context, dx, 0, before, 0);
  }
};

/// The end of a tower: its outputs become columns after those of the towers before it.
class Chain::TowerEnd final : public Inner {
 public:
  using Inner::Inner;

  void forward(const StageContext& context, const void* x_in, void* x_out, float*) const override {
    if (!x_out) return;
    const Places at = places(context, const_cast<void*>(x_in), x_out);
    ops::copy(at.pass, at.joined_before, at.before), ops::copy(at.pass, at.joined_own, at.own);
  }

  void backward(const StageContext& context, const void*, float*, void* dx, kernels::Write) const override {
    const Places at = places(context, dx, activation(context));
    context.stream.copy(at.joined_before.data, dx, (at.before.numel() + at.own.numel()) * size_of(context.type));
    ops::copy(at.pass, at.before, at.joined_before), ops::copy(at.pass, at.own, at.joined_own);
  }

 private:
  struct Places {
    Pass pass;  // for ops
    Tensor own, before, joined_own, joined_before;
  };
  Places places(const StageContext& context, void* parts, void* joined) const {
    const std::size_t R = context.shape.B * part_.tower.rows, C = part_.tower.joins,
                      C0 = part_.tower.carried / part_.tower.rows;
    const Tensor whole = dense(joined, R, C0 + C, context.type);
    Pass pass;
    pass.stream = &context.stream;
    return {pass, dense(parts, R, C, context.type),
            dense(static_cast<std::byte*>(parts) + outputs(context), R, C0, context.type), whole.columns_from(C0, C),
            whole.columns_from(0, C0)};
  }
};

class Chain::Last final : public LossStage {
 public:
  explicit Last(const Chain& chain) : LossStage(format("loss '{}'", chain.last_.name), chain.last_.indices), chain_(chain) {}

  void forward_backward(const StageContext& context, const void* x, const std::int32_t* targets, float gradient_scale,
                        kernels::LossSum& sum, void* dx, kernels::Write write) const override {
    chain_.evaluate(context, x, targets, gradient_scale, sum, dx, nullptr, write);
  }

  void forward(const StageContext& context, const void* x, const std::int32_t* targets, kernels::LossSum& sum,
               float* losses) const override {
    chain_.evaluate(context, x, targets, 1, sum, nullptr, losses);
  }

 private:
  const Chain& chain_;
};

Chain::Chain(const NamedLayers& layers, const std::string& loss_name, LossPtr user_loss, const DeviceTraits& device,
             const std::vector<TiedParameters>& ties, const NamedTowers& towers)
    : Model(device), loss_(std::move(user_loss)), proof_(std::make_unique<Proof>()) {
  if (!loss_) throw UserError("the model has no loss (training needs one); give it one by Sequential::loss()");
  std::vector<TiedParameters> tied = ties;
  std::set<std::string> names = {loss_name};
  std::size_t width = layers.empty() ? loss_->inputs() : layers.front().second->inputs();
  const std::size_t input_width = width;
  if (!towers.empty()) width = 0;
  for (const auto& [name, tower] : towers) width += tower.width_;
  const std::vector<Part> parts = parts_of(towers, layers);
  NamedLayers all;
  for (const Part& part : parts)
    if (part.layer) all.emplace_back(part.name, part.layer);
  require_separate(all);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = parts[i].name;
    const LayerPtr& layer = parts[i].layer;
    const InTower& tower = parts[i].tower;
    const bool is_input = tower.reads_input, is_first = i == 0 && is_input;
    if (!layer) {
      (is_first ? first_ : blocks_.emplace_back()) = parts[i];
      continue;
    }
    if (name.empty() || !names.insert(name).second)
      throw UserError(
          format("a layer has the name '{}' (each layer and the loss need a unique name); choose another name", name));
    require_sane(
        "layer", name,
        {layer->inputs(), layer->outputs(), layer->saved(), layer->saved_floats(), layer->scratch(), layer->gathers()});
    if (is_input) require_saves_nothing(name, {.saved = layer->saved(), .saved_floats = layer->saved_floats()});
    if (is_input && layer->gathers() > 0)
      throw UserError(
          format("layer '{}' takes tokens and gathers numbers of all ranks (only layers of numbers can); put the gather "
                 "into a layer after it",
                 name));
    if (layer->takes_tokens() && !is_input)
      throw UserError(format("layer '{}' takes tokens (only the first layer of a model or a tower can); put it there", name));
    if (tower.rows == 0) {
      if (i > 0 && parts[i - 1].layer && parts[i - 1].tower.rows == 0)
        require_fit({parts[i - 1].name, parts[i - 1].layer}, {name, layer});
      else if (!towers.empty() && layer->inputs() != width)
        throw UserError(format("layer '{}' takes {} numbers per row (the towers before it give {}); make them equal", name,
                               layer->inputs(), width));
      widest_ = std::max({widest_, layer->inputs(), layer->outputs()});
      width = layer->outputs();
    }
    Part part = make_part(name, layer, layer->parameters(), is_first ? -1 : narrow<int>(blocks_.size()), tied);
    part.tower = tower;
    (is_first ? first_ : blocks_.emplace_back()) = std::move(part);
  }
  require_sane("loss", loss_name, {loss_->inputs(), loss_->targets(), loss_->scratch()});
  if (loss_->inputs() != width)
    throw UserError(format("the loss takes {} numbers per row ({}); make them equal", loss_->inputs(),
                           layers.empty() ? format("the towers before it give {}", width)
                                          : format("layer '{}' before it gives {}", layers.back().first, width)));
  last_ = make_part(loss_name, nullptr, loss_->parameters(), -1, tied);
  for (const LayerParameter& parameter : last_.parameters)
    if (parameter.kind == LayerParameter::Kind::state)
      throw UserError(
          format("loss '{}' has the state '{}' (only layers have state); put it into a layer", loss_name, parameter.name));
  if (!tied.empty())
    throw UserError(format("tie() names the parameter '{}' (this model has {}); correct the name", tied.front().name,
                           parameters_.empty() ? "none" : format("{}, ...", parameters_.front().name)));
  find_ties();
  widest_ = std::max(widest_, width);
  most_columns_ = std::max(most_columns_, loss_->inputs());  // losses keep the weights of classes in this memory
  row_sizes.tokens = towers.empty() && first_.layer;
  row_sizes.inputs = towers.empty() ? input_width : 0;
  row_sizes.vocabulary = row_sizes.tokens ? first_.layer->vocabulary() : 0;
  row_sizes.targets = loss_->targets(), row_sizes.labels = loss_->takes_labels(), row_sizes.classes = loss_->classes();
  sees_all_ranks = loss_->sees_all_ranks();
  layers_depend_on_ranks = std::ranges::any_of(parameters_, [](const Parameter& one) { return one.is_state(); }) ||
                           std::ranges::any_of(parts, [](const Part& part) { return part.layer && part.layer->gathers() > 0; });
  if (sees_all_ranks && !loss_->looks_ahead())
    throw UserError(
        format("loss '{}' sees all ranks, but looks_ahead() is false (rows are gathered whole); return true", loss_name));
  takes_short_rows = towers.empty() && !layers_depend_on_ranks && loss_->takes_labels() && loss_->targets() == 1 &&
                     !loss_->looks_ahead() &&
                     std::none_of(layers.begin(), layers.end(), [](const auto& each) { return each.second->looks_ahead(); });
  stage_names.push_back(first_.name.empty() ? "inputs" : first_.name);
  for (const Part& part : blocks_) stage_names.push_back(part.name);
  stage_names.push_back(loss_name);
  first = std::make_unique<First>(*this);
  const auto make_stage = [&](const Part& part) -> std::unique_ptr<const BlockStage> {
    if (part.tower.reads_input) return std::make_unique<TowerBegin>(*this, part);
    if (part.tower.joins > 0) return std::make_unique<TowerEnd>(*this, part);
    return std::make_unique<Block>(*this, part);
  };
  for (const Part& part : blocks_) blocks.push_back(make_stage(part));
  loss = std::make_unique<Last>(*this);
}

/// The parts of the towers and of what follows, without parameters. Also sets the inputs and the sizes of the towers.
std::vector<Chain::Part> Chain::parts_of(const NamedTowers& towers, const NamedLayers& layers) {
  std::vector<Part> parts;
  std::size_t stage = 0, carried = 0;
  for (std::size_t i = 0; i < towers.size(); ++i) {
    const auto& [name, tower] = towers[i];
    const std::size_t first_stage = stage;
    if (i == 0) tower_rows_ = tower.rows_;
    if (tower.rows_ != tower_rows_)
      throw UserError(
          format("the tower '{}' ends with {} rows for an example, and '{}' with {} (the towers of a row are next to each "
                 "other); make them equal, for example by fold() and mean_pool()",
                 name, tower.rows_, towers.front().first, tower_rows_));
    const auto add = [&](std::string title, LayerPtr layer, InTower at, std::size_t numbers) {
      at.carried = carried, at.first = first_stage, at.input = i;
      parts.push_back({std::move(title), std::move(layer), {}, {}, {}, at});
      most_of_towers_ = std::max(most_of_towers_, carried + numbers);
      ++stage;
    };
    NamedInput& input = row_sizes.named.emplace_back(tower.input_);
    if (!input.kind.integers)
      add(format("input '{}'", input.name), nullptr, {.rows = input.length, .reads_input = true}, input.numbers());
    for (const Tower::Part& part : tower.parts_) {
      const bool is_input = part.layer->takes_tokens();
      if (is_input && part.layer->vocabulary() > 0)
        input.kind.limit = std::min(input.kind.limit - 1, part.layer->vocabulary() - 1) + 1;  // 0: no limit
      add(name + "." + part.name, part.layer, {.rows = part.rows, .reads_input = is_input},
          part.rows * std::max(part.layer->inputs(), part.layer->outputs()));
    }
    if (i > 0)
      add(format("join of '{}'", name), nullptr, {.rows = tower.rows_, .joins = tower.width_}, tower.rows_ * tower.width_);
    carried += tower.rows_ * tower.width_;
  }
  for (const auto& [name, layer] : layers) {
    const bool is_input = parts.empty() && layer->takes_tokens();
    parts.push_back({name, layer, {}, {}, {}, {.reads_input = is_input}});
  }
  return parts;
}

/// The name of a stage in messages.
std::string Chain::title_of(const Part& part) const {
  if (part.layer) return format("layer '{}'", part.name);
  return part.name.empty() ? "the conversion of the inputs" : part.name;
}

/// The numbers that a part gives, without those of earlier towers that it passes on.
std::size_t Chain::outputs_of(const Part& part, BatchShape shape) const {
  const InTower& tower = part.tower;
  if (!part.layer && tower.joins == 0)
    return tower.rows > 0 ? shape.B * row_sizes.named[tower.input].numbers() : shape.rows() * row_sizes.inputs;
  return shape.B * (tower.rows > 0 ? tower.rows : shape.T) * (part.layer ? part.layer->outputs() : tower.joins);
}

/// The input that a part reads, among the inputs of the batch.
const std::int32_t* Chain::input_of(const Part& part, BatchShape shape, const std::int32_t* inputs) const {
  for (std::size_t i = 0; i < part.tower.input; ++i) inputs += shape.B * row_sizes.named[i].numbers();
  return inputs;
}

/// Runs the first layer over an input or, if there is no layer, converts the numbers to the type of activations.
void Chain::read_input(const StageContext& context, const Part& part, const std::int32_t* inputs, void* x) const {
  const std::int32_t* const own = input_of(part, context.shape, inputs);
  if (part.layer) return forward(context, part, own, x, nullptr);
  with_element(context.type, [&]<class E>() {
    const auto* const values = reinterpret_cast<const float*>(own);
    const std::size_t n = outputs_of(part, context.shape);
    if constexpr (std::is_same_v<E, float>)
      context.stream.copy(x, values, n * sizeof(float));
    else
      kernels::convert(context.stream, static_cast<E*>(x), values, n);
  });
}

std::size_t Chain::index_of(const std::string& parameter) const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const Parameter& p) { return p.name == parameter; });
  return static_cast<std::size_t>(found - parameters_.begin());
}

/// Makes a part, and adds its parameters to those of the model, except tied ones, which it removes from `tied`.
Chain::Part Chain::make_part(const std::string& name, LayerPtr layer, std::vector<LayerParameter> parameters, int block,
                             std::vector<TiedParameters>& tied) {
  Part part{name, std::move(layer), std::move(parameters), {}, {}};
  std::size_t state = 0;  // numbers
  for (const LayerParameter& parameter : part.parameters) {
    if (parameter.name.empty())
      throw UserError(format("a parameter of layer '{}' has no name (checkpoints need it); correct parameters()", name));
    bool has_numbers = !parameter.shape.empty();
    std::size_t product = 1;
    for (const std::size_t n : parameter.shape)
      has_numbers = has_numbers && n > 0 && !__builtin_mul_overflow(product, n, &product) && product < std::size_t{1} << 48;
    if (!has_numbers)
      throw UserError(
          format("parameter '{}' of layer '{}' has the shape {} (it is empty, or larger than any memory); correct parameters()",
                 parameter.name, name, to_string(parameter.shape)));
    const std::string whole = name + "." + parameter.name;
    require_name(whole);
    const Init& init = parameter.init;
    if (!std::isfinite(init.value) || (init.kind != Init::Kind::constant && init.value < 0))
      throw UserError(format(
          "parameter '{}' is initialized with {} {} (values must be finite, and scales at least 0); correct parameters()",
          whole, init.kind == Init::Kind::constant ? "the value" : "random numbers of scale", init.value));
    const bool is_state = parameter.kind == LayerParameter::Kind::state;
    if (is_state && !(parameter.momentum > 0 && parameter.momentum <= 1))
      throw UserError(format("the state '{}' has momentum {} (it must be above 0, and at most 1); correct parameters()", whole,
                             parameter.momentum));
    most_columns_ = std::max(most_columns_, parameter.shape.size() > 1 ? product / parameter.shape.front() : product);
    const auto tie = std::find_if(tied.begin(), tied.end(), [&](const TiedParameters& one) { return one.name == whole; });
    std::size_t index = tie == tied.end() ? index_of(whole) : index_of(tie->same_as);
    if (tie != tied.end()) {
      if (index == parameters_.size())
        throw UserError(
            format("tie() makes '{}' the parameter '{}' (no earlier layer has that); give the later parameter first, then the "
                   "earlier one",
                   whole, tie->same_as));
      if (parameters_[index].shape != parameter.shape)
        throw UserError(format("tie() makes '{}' {} the parameter '{}' {}; make the shapes equal", whole,
                               to_string(parameter.shape), tie->same_as, to_string(parameters_[index].shape)));
      if (parameter.kind != LayerParameter::Kind::trained || parameters_[index].is_state() || parameters_[index].is_constant)
        throw UserError(
            format("tie() makes '{}' the parameter '{}' (only parameters that are trained can be tied); leave it out", whole,
                   tie->same_as));
      tied.erase(tie);
    } else {
      if (index < parameters_.size()) throw UserError(format("there are two parameters '{}'; give each a unique name", whole));
      parameters_.push_back({whole, parameter.shape, parameter.init, parameter.shape.size() > 1, block});
      parameters_.back().is_constant = parameter.kind == LayerParameter::Kind::constant;
      if (is_state) parameters_.back().momentum = parameter.momentum;
      next_at_.push_back(state);
      if (is_state) state += product;
    }
    part.indices.push_back(index);
  }
  most_state_ = std::max(most_state_, state);
  return part;
}

/// Sets Part::adds, in the order of backward. A parameter of several parts belongs to none of their blocks.
void Chain::find_ties() {
  std::vector<const Part*> writer(parameters_.size());
  const auto visit = [&](Part& part) {
    for (const std::size_t index : part.indices) {
      const Part* const other = std::exchange(writer[index], &part);
      part.adds.push_back(other != nullptr);
      if (other && other != &part) parameters_[index].block = -1;
    }
  };
  visit(last_);
  std::for_each(blocks_.rbegin(), blocks_.rend(), visit);
  visit(first_);
}

FoundLayer Chain::find_layer(const std::string& layer) const {
  std::vector<std::string> outer, inner;  // the names of all, and of those inside the stage that `layer` could be in
  std::vector<FoundLayer> found;
  const auto visit = [&](const Part& part, std::size_t stage) {
    if (!part.layer) return;
    outer.push_back(part.name);
    const InTower& tower = part.tower;
    const auto input = tower.rows > 0 ? std::optional(tower.input) : std::nullopt;
    if (part.name == layer) found.push_back({stage, {}, tower.first, tower.carried, input});
    if (!layer.starts_with(part.name + ".")) return;
    for (const std::string& name : inner_names(part.name, *part.layer)) {
      if (name == layer) found.push_back({stage, place_of(name), tower.first, 0, input});
      inner.push_back(name);
    }
  };
  visit(first_, 0);
  for (std::size_t b = 0; b < blocks_.size(); ++b) visit(blocks_[b], b + 1);
  if (found.size() > 1)
    throw UserError(
        format("the model has {} layers '{}' (one is inside another with a shorter name); rename one", found.size(), layer));
  if (found.size() == 1) return found.front();
  constexpr std::size_t most = 8;
  const std::vector<std::string>& all = inner.empty() ? outer : inner;
  throw UserError(format("the model has no layer '{}' (it has {}{}); give one of these", layer,
                         fmt::join(std::span(all).first(std::min(most, all.size())), ", "), all.size() > most ? ", ..." : ""));
}

FoundLayer Chain::find_input(const std::string& input) const {
  const std::vector<NamedInput>& all = row_sizes.named;
  if (all.empty() && input.empty()) return {0};
  if (all.empty())
    throw UserError(format("the model has no input '{}' (its only input has no name); leave out the name", input));
  std::size_t i = 0;
  while (i < all.size() && all[i].name != input && !(input.empty() && all.size() == 1)) ++i;
  if (i == all.size())
    throw UserError(input.empty() ? format("the model has several inputs ({}); name one", names_of(all))
                                  : format("the model has no input '{}' (it has {}); give one of these", input, names_of(all)));
  if (all[i].kind.integers)
    throw UserError(format("the input '{}' is integers, which have no gradient; name another input", all[i].name));
  const auto begins = [&](const Part& part) { return part.tower.reads_input && part.tower.input == i; };
  if (begins(first_)) return {0};
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), begins);
  return {static_cast<std::size_t>(block - blocks_.begin()) + 1, {}, 0, block->tower.carried};
}

ModelSizes Chain::sizes(BatchShape shape, DType type, const kernels::CacheShape&) const {
  const std::size_t R = shape.rows();
  std::size_t scratch_of_parts = 0;
  const auto sizes_of = [&](const Part& part) {
    const BatchSizes batch = batch_of(shape, type, part);
    MemorySizes own;
    naming(part.layer ? "layer" : "loss", part.name,
           [&] { own = part.layer ? part.layer->sizes(batch) : loss_->sizes(batch); });
    require_sane(part.layer ? "layer" : "loss", part.name, {own.saved, own.saved_floats, own.scratch});
    if (part.layer && part.tower.reads_input) require_saves_nothing(part.name, own);
    scratch_of_parts = std::max(scratch_of_parts, batch.rows() * own.scratch);
    return own;
  };
  ModelSizes sizes{.first_uses_scratch = first_.layer && sizes_of(first_).scratch > 0,
                   .first_backward_reads = first_.layer && !is_of_embeddings(*first_.layer),
                   .inputs = row_sizes.inputs_of(shape) * sizeof(float),
                   .targets = R * loss_->targets() * sizeof(float),
                   .gathered_from = sees_all_ranks ? device_.ranks : 0,
                   .type = type,
                   .losses = R * sizeof(float),
                   .stages = parameters_by_stage()};
  const auto add_output = [&](const Part& part) {
    sizes.activations.push_back((outputs_of(part, shape) + shape.B * part.tower.carried) * size_of(type));
  };
  add_output(first_);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Part& part = blocks_[b];
    add_output(part);
    const MemorySizes own = part.layer ? sizes_of(part) : MemorySizes();
    sizes.saved.push_back(SavedLayout{own, batch_of(shape, type, part).rows(), type}.end * sizeof(float));
    if (part.tower.reads_input) sizes.input_blocks.push_back(narrow<int>(b));
    if (part.tower.reads_input && part.layer && is_of_embeddings(*part.layer)) sizes.embedding_blocks.push_back(narrow<int>(b));
  }
  const auto gathers_of = [](const Part& part) { return part.layer ? part.layer->gathers() : 0; };
  if (std::ranges::any_of(blocks_, [&](const Part& block) { return gathers_of(block) > 0; })) {
    for (const Part& block : blocks_) sizes.gathers.push_back(gathers_of(block));
    sizes.gathered_in_layers = device_.ranks * *std::ranges::max_element(sizes.gathers) * sizeof(float);
  }
  sizes_of(last_);
  Scratch scratch{*this, shape, type};
  scratch.at.take_values(scratch_of_parts);
  sizes.scratch = scratch.at.end() * sizeof(float);
  sizes.kept = sizes.saved;  // all of it: a layer does not declare what is cheap to recompute
  return sizes;
}

void Chain::check_batch(BatchShape shape, DType type, const kernels::CacheShape& cache) const {
  if (shape.rows() == 0) throw UserError("a batch has no rows; raise `micro-batch`");
  if (cache.positions > 0) throw UserError("user-defined layers cannot generate text (they have no key-value cache)");
  if (tower_rows_ > 0 && shape.T != tower_rows_)
    throw UserError(format(
        "the towers end with {} rows for an example, and `sequence length` is {}; make them equal: fold() and mean_pool() make "
        "one row of several",
        tower_rows_, shape.T));
  const auto require = [&](const char* what, const std::string& name, bool works_in_type, bool works_on_gpu) {
    if (!works_in_type)
      throw UserError(
          format("{} '{}' does not work in {} (its works_in() returns false); choose another precision, or extend works_in()",
                 what, name, name_of(type)));
    if (!is_host(device_.kind) && !works_on_gpu)
      throw UserError(
          format("{} '{}' does not work on a GPU (its works_on_gpu() returns false); choose the CPU, or extend works_on_gpu()",
                 what, name));
  };
  const auto check = [&](const Part& part) {
    const BatchSizes batch = batch_of(shape, type, part);
    if (part.tower.rows > 0 && batch.rows() > std::size_t{1} << 30)
      throw UserError(format("'{}' has {} examples of {} rows (a batch has 2^30 rows at most); lower `micro-batch`", part.name,
                             batch.B, batch.T));
    if (!part.layer) return;
    require("layer", part.name, part.layer->works_in(type), part.layer->works_on_gpu());
    naming("layer", part.name, [&] { part.layer->check_batch(batch.B, batch.T); });
  };
  check(first_);
  for (const Part& block : blocks_) check(block);
  require("loss", last_.name, loss_->works_in(type), loss_->works_on_gpu());
  naming("loss", last_.name, [&] { loss_->check_batch(shape.B, shape.T); });
}

bool Chain::works_in(DType type) const {
  const auto works = [&](const Part& part) { return !part.layer || part.layer->works_in(type); };
  return works(first_) && std::all_of(blocks_.begin(), blocks_.end(), works) && loss_->works_in(type);
}

BatchSizes Chain::batch_of(BatchShape shape, DType type, const Part& part) const {
  return {shape.B,      part.tower.rows > 0 ? part.tower.rows : shape.T, type, device_.threads, !is_host(device_.kind),
          device_.ranks};
}

/// Makes the pass of a layer or of the loss over x, which is the batch's tokens if a layer takes tokens.
template <class P>
P Chain::pass_of(const StageContext& context, const Part& part, const void* x) const {
  const Scratch scratch{*this, context.shape, context.type};
  const Layer* const layer = part.layer.get();
  P pass;
  static_cast<BatchSizes&>(pass) = batch_of(context.shape, context.type, part);
  if (layer && layer->takes_tokens())
    pass.tokens = static_cast<const std::int32_t*>(x);
  else
    pass.x = dense(const_cast<void*>(x), pass.rows(), layer ? layer->inputs() : loss_->inputs(), context.type);
  pass.update = context.dropout.update, pass.first_sequence = context.dropout.first_sequence, pass.seed = context.dropout.seed;
  pass.trains = context.dropout.update > 0;
  pass.place = place_of(part.name);
  pass.inner = context.inner;
  const MemorySizes sizes = layer ? layer->sizes(pass) : loss_->sizes(pass);
  pass.scratch = dense(context.scratch + scratch.own, pass.rows(), sizes.scratch, context.type);
  pass.stream = &context.stream;
  pass.sums = context.scratch + scratch.sums, pass.unwanted = context.scratch + scratch.unwanted;
  pass.most_columns = most_columns_;
  pass.weights = context.weights.data();
  pass.parameters = part.parameters, pass.indices = part.indices;
  if (proof_->is_on()) {
    pass.proof = proof_.get();
    proof_->set_part(format("{} '{}'", layer ? "layer" : "loss", part.name));
    if (proof_->is_comparison()) pass.update = 1;  // so that random numbers are compared, too
  }
  for (const std::size_t index : part.indices)
    expect(pass.weights[index] != nullptr, "a stage runs with its parameters gathered");
  return pass;
}

/// Sets gradients to zero for the first micro-batch (`write` is overwrite), because layers always add to gradients. Gradients
/// of tied parameters are set to zero once.
void Chain::clear_gradients(const StageContext& context, const Part& part, kernels::Write write) const {
  const bool is_new = write == kernels::Write::overwrite;
  for (std::size_t i = 0; i < part.parameters.size() && (is_new || proof_->is_on()); ++i) {
    float* const gradient = part.adds[i] ? nullptr : context.gradients[part.indices[i]];
    if (!gradient) continue;
    const std::size_t n = numel(part.parameters[i].shape);
    if (is_new) kernels::fill_zero(context.stream, gradient, n);
    const bool is_state = part.parameters[i].kind == LayerParameter::Kind::state;
    if (proof_->is_on() && !is_state)
      proof_->prepare_gradient(context.stream, dense(gradient, 1, n, DType::f32), part.indices[i], is_new);
  }
}

void Chain::inspect_gradients(const StageContext& context, const Part& part, const char* function) const {
  for (std::size_t i = 0; i < part.parameters.size(); ++i)
    if (float* const gradient = part.adds[i] || part.parameters[i].kind == LayerParameter::Kind::state
                                    ? nullptr
                                    : context.gradients[part.indices[i]])
      proof_->inspect_gradient(context.stream, dense(gradient, 1, numel(part.parameters[i].shape), DType::f32), part.indices[i],
                               function, part.parameters[i].name);
}

/// Runs a pass of a layer, `work`, which may gather in training.
template <class P, class Work>
void Chain::run_layer(P& pass, const StageContext& context, const Part& part, const char* function, const Work& work) const {
  Gathering gathering{context.layers.group, context.layers.memory, part.layer->gathers()};
  pass.gathering = &gathering;
  naming("layer", part.name, [&] {
    work();
    if (pass.trains && gathering.done != gathering.declared)
      throw UserError(format("{} gathers {} numbers in training (gathers() returns {}); correct gathers()", function,
                             gathering.done, gathering.declared));
  });
}

/// Adds what the states move to, with its weight in the sum of the update, to their "gradients": see optim/running_mean.cpp.
void Chain::move_state(const BackwardPass& pass, const StageContext& context, const Part& part) const {
  for (std::size_t i = 0; i < part.parameters.size(); ++i) {
    if (part.parameters[i].kind != LayerParameter::Kind::state) continue;
    const Tensor next = pass.next(i);
    if (!next) continue;
    if (pass.proof) proof_->inspect(context.stream, next, "backward()", format("next() of '{}'", part.parameters[i].name));
    const double momentum = static_cast<double>(part.parameters[i].momentum);
    const double weight = momentum * std::pow(1 - momentum, static_cast<double>(context.following));
    kernels::add_scaled(context.stream, context.gradients[part.indices[i]], next.floats(), next.numel(),
                        static_cast<float>(weight / static_cast<double>(device_.ranks)));
  }
}

void Chain::forward(const StageContext& context, const Part& part, const void* x, void* y, float* saved) const {
  const Layer& layer = *part.layer;
  auto pass = pass_of<ForwardPass>(context, part, x);
  const std::size_t R = pass.rows();
  pass.y = dense(y, R, layer.outputs(), context.type);
  give_saved(pass, layer, saved);
  if (pass.proof)
    for (const Tensor& memory : {pass.saved, pass.stats}) proof_->fill(context.stream, memory, Unwritten::saved);
  run_layer(pass, context, part, "forward()",
            [&] { run_pass(pass, "forward()", {}, pass.y, "y", {}, [&] { layer.forward(pass); }); });
  if (pass.proof) proof_->note_outputs(pass, pass.y, {pass.saved, pass.stats});
}

void Chain::backward(const StageContext& context, const Part& part, const void* x, const void* dy, void* dx, float* saved,
                     kernels::Write write) const {
  const Layer& layer = *part.layer;
  clear_gradients(context, part, write);
  auto pass = pass_of<BackwardPass>(context, part, x);
  const std::size_t R = pass.rows();
  pass.dy = dense(const_cast<void*>(dy), R, layer.outputs(), context.type);
  if (dx) pass.dx = dense(dx, R, layer.inputs(), context.type);
  give_saved(pass, layer, saved);
  pass.gradients = context.gradients.data();
  pass.nexts = context.scratch + Scratch{*this, context.shape, context.type}.nexts, pass.next_at = next_at_.data();
  if (pass.proof && most_state_ > 0)
    proof_->fill(context.stream, dense(pass.nexts, 1, most_state_, DType::f32), Unwritten::result);
  run_layer(pass, context, part, "backward()",
            [&] { run_pass(pass, "backward()", {}, pass.dx, "dx", pass.dy, [&] { layer.backward(pass); }); });
  move_state(pass, context, part);
  if (pass.proof) inspect_gradients(context, part, "backward()");
}

void Chain::evaluate(const StageContext& context, const void* x, const std::int32_t* targets, float scale,
                     kernels::LossSum& total, void* dx, float* losses, std::optional<kernels::Write> write) const {
  auto pass = pass_of<LossPass>(context, last_, x);
  const std::size_t R = pass.rows();
  if (loss_->takes_labels())
    pass.labels = targets;
  else
    pass.targets = dense(const_cast<std::int32_t*>(targets), R, loss_->targets(), DType::f32);
  pass.losses = context.scratch + Scratch{*this, context.shape, context.type}.losses;
  if (dx) pass.dx = dense(dx, R, loss_->inputs(), context.type);
  if (sees_all_ranks) {
    const RowsOfAllRanks& of = context.all;
    const std::size_t rows = device_.ranks * R, numbers = rows * loss_->targets();
    pass.first_row = pass.proof && proof_->is_comparison() ? 0 : of.rank * R;  // all ranks then have the same rows
    pass.all = dense(const_cast<void*>(of.outputs), rows, loss_->inputs(), context.type);
    if (dx) pass.d_all = dense(of.gradient, rows, loss_->inputs(), DType::f32);
    if (loss_->takes_labels())
      pass.all_labels = {of.targets, numbers};
    else
      pass.all_targets = dense(const_cast<std::int32_t*>(of.targets), rows, loss_->targets(), DType::f32);
  }
  pass.gradients = dx && !context.gradients.empty() ? context.gradients.data() : nullptr;
  const Tensor all_losses = dense(pass.losses, R, 1, DType::f32);
  const auto run = [&](float of_gradients) {
    pass.scale = of_gradients;
    if (write) clear_gradients(context, last_, *write);
    if (pass.d_all) kernels::fill_zero(context.stream, pass.d_all.floats(), pass.d_all.numel());
    naming("loss", last_.name, [&] {
      run_pass(pass, "evaluate()", {}, all_losses, "losses", {},
               [&] { run_pass(pass, "evaluate()", {}, pass.dx, "dx", {}, [&] { loss_->evaluate(pass); }); });
    });
  };
  // What must be proportional to the scale: see Proof::compare_scales().
  std::vector<std::pair<std::string, Tensor>> scaled;
  std::vector<std::vector<float>> half;
  if (pass.proof && dx && write == kernels::Write::overwrite) {
    scaled = {{"dx", pass.dx}, {"d_all", pass.d_all}};
    for (std::size_t i = 0; i < last_.parameters.size(); ++i)
      scaled.emplace_back(format("the gradient of '{}'", last_.parameters[i].name), pass.gradient(i));
    std::erase_if(scaled, [](const auto& one) { return !one.second; });
    run(scale / 2);
    for (const auto& [name, tensor] : scaled) half.push_back(numbers_of(context.stream, tensor));
  }
  run(scale);
  if (pass.proof) {
    for (std::size_t i = 0; i < half.size(); ++i)
      proof_->compare_scales(half[i], numbers_of(context.stream, scaled[i].second), scaled[i].second.columns, scale,
                             scaled[i].first);
    if (pass.d_all) proof_->inspect(context.stream, pass.d_all, "evaluate()", "d_all");
    if (dx) inspect_gradients(context, last_, "evaluate()");
    proof_->note_outputs(pass, all_losses, {});
  }
  kernels::add_losses(context.stream, total, pass.losses, R);
  if (losses) context.stream.copy(losses, pass.losses, R * sizeof(float));
}

}  // namespace fsdp
