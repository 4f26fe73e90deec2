// Recorded layers and losses: their plans, and how a plan runs.
#include <algorithm>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/threads.hpp"
#include "layers/by_batch.hpp"
#include "layers/place.hpp"
#include "layers/tape_plan.hpp"

namespace fsdp {

namespace {

using kernels::TapeSpaces;
using ops::Out;
using ops::Transpose;

/// The function of a layer or loss, and its plan for each size of batch.
class Recorder {
 public:
  Recorder(std::size_t inputs, std::function<Value(Tape&, Value)> function, bool is_loss, RecordedLossOptions options,
           bool tiled = true)
      : inputs_(inputs), function_(std::move(function)), is_loss_(is_loss), tiled_(tiled), options_(options) {
    const char* const name = is_loss ? "recorded_loss" : "recorded";
    require_size(name, "inputs", inputs);
    if (!function_) throw UserError(format("the function of {}() is null; give one", name));
    if (options.labels > 0 && options.targets > 0)
      throw UserError(format("recorded_loss() takes {} labels and {} targets (a batch has one of both); leave one out",
                             options.labels, options.targets));
    first_ = record(function_, inputs_, {}, is_loss_, options_);
  }

  const TapeList& first() const { return first_; }
  std::size_t inputs() const { return inputs_; }
  std::size_t outputs() const { return first_[first_.result].columns; }
  const RecordedLossOptions& options() const { return options_; }

  /// The plan for these sizes. It is made at the first call, which is that of sizes() when a model's plan is made.
  const TapePlan& plan(const BatchSizes& batch) const {
    const auto make = [&] {
      TapeList list = record(function_, inputs_, batch, is_loss_, options_);
      require_same(list, batch);
      return TapePlan(std::move(list), batch, is_loss_, tiled_);
    };
    return plans_.get(batch, make);
  }

 private:
  void require_same(const TapeList& list, const BatchSizes& batch) const {
    const std::string wanted = first_.text(false), given = list.text(false);
    const auto columns = list[list.result].columns;
    if (given == wanted && columns == outputs()) return;
    std::size_t at = 0;
    while (at < wanted.size() && at < given.size() && wanted[at] == given[at]) ++at;
    const auto line = [&](const std::string& text) {
      const std::size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
      return begin >= text.size() ? std::string("there is no more operation")
                                  : text.substr(begin, text.find('\n', begin) - begin);
    };
    throw UserError(
        format("the recording for {} sequences of {} positions differs from that for no rows ({}); record the same "
               "operations and columns for all sizes",
               batch.B, batch.T,
               given == wanted ? format("the result has {} columns, but {} there", columns, outputs())
                               : format("{}, but {} there", line(given), line(wanted))));
  }

  const std::size_t inputs_;
  const std::function<Value(Tape&, Value)> function_;
  const bool is_loss_, tiled_;
  const RecordedLossOptions options_;
  TapeList first_;  // for no rows
  mutable ByBatch<TapePlan> plans_;
};

/// One pass over a plan. `gradient_of(i)` is the gradient of parameter i, or none.
template <class GradientOf>
class TapePass {
 public:
  TapePass(const TapePlan& plan, const Pass& pass, const TapeSpaces& spaces, const Tensor& dx, GradientOf gradient_of,
           const Tensor& all = {}, const Tensor& d_all = {})
      : plan_(plan),
        list_(plan.list()),
        pass_(pass),
        spaces_(spaces),
        dx_(dx),
        all_(all),
        d_all_(d_all),
        gradient_of_(gradient_of) {
    expect(pass.on_gpu || kernels::threads() <= static_cast<int>(pass.threads), "tiles are planned for all threads");
    for (std::size_t i = 0; i < list_.parameters.size(); ++i)
      if (gradient_of_(i)) wanted_ |= std::uint64_t{2} << i;
    if (dx) wanted_ |= 1;
  }

  void forward() const {
    for (const TapeGroup& group : plan_.groups())
      if (group.is_run)
        run(group, group.forward, ~std::uint64_t{0}, false);
      else
        compute(group.nodes.front());
  }
  void backward() const {
    if (dx_ && !plan_.writes_dx) ops::fill_zero(pass_, dx_);
    for (auto group = plan_.groups().rbegin(); group != plan_.groups().rend(); ++group)
      if (group->is_run)
        run(*group, group->backward, wanted_, true);
      else
        differentiate(*group);
  }

 private:
  void run(const TapeGroup& group, const TapeSteps& steps, std::uint64_t wanted, bool is_backward) const {
    char* const scratch = static_cast<char*>(spaces_.at[kernels::scratch_space]);
    const kernels::TapeRun call = {.steps = steps.steps.data(),
                                   .steps_on_gpu = reinterpret_cast<kernels::TapeStep*>(scratch + plan_.steps_at),
                                   .count = steps.steps.size(),
                                   .rows = group.rows,
                                   .parts = kernels::TapeRun::parts_of(group.rows, pass_.on_gpu),
                                   .wanted = wanted,
                                   .widest = steps.widest,
                                   .tiles = reinterpret_cast<float*>(scratch + plan_.tiles_at),
                                   .tile_floats = steps.tile_floats,
                                   .sums = reinterpret_cast<float*>(scratch + plan_.sums_at),
                                   .sum_floats = steps.sum_floats,
                                   .spaces = spaces_};
    if (is_backward && std::none_of(steps.steps.begin(), steps.steps.end(),
                                    [&](const kernels::TapeStep& step) { return (step.serves & wanted) != 0; }))
      return;
    kernels::run_tape(*pass_.stream, call);
    for (const TapeSum& sum : steps.sums)
      if ((sum.serves & wanted) != 0) {
        const Tensor to = is_backward ? gradient(sum.node) : value(sum.node);
        with_element(to.type, [&]<class E>() {
          kernels::finish_sums(*pass_.stream, static_cast<E*>(to.data), call.sums + sum.offset, call.parts, steps.sum_floats,
                               sum.n, !is_backward || sum.sets ? kernels::Write::overwrite : kernels::Write::add);
        });
      }
  }

  Tensor at(const TapePlace& place, int node) const {
    const TapeNode& of = list_[node];
    if (!place) return {};
    return {static_cast<char*>(spaces_.at[place.space]) + place.offset, of.rows, of.columns, of.columns,
            place.wide ? DType::f32 : pass_.type};
  }
  Tensor view(const Tensor& base, std::size_t begin, int node) const {
    return base ? base.columns_from(begin, list_[node].columns) : base;
  }
  /// The whole value of a node.
  Tensor value(int node) const {
    const auto [base, begin] = list_.base(node);
    const TapeNode& of = list_[base];
    const Tensor all = of.kind == TapeKind::x           ? pass_.x
                       : of.kind == TapeKind::all       ? all_
                       : of.kind == TapeKind::parameter ? pass_.parameter(of.n)
                                                        : at(plan_.value(base), base);
    return view(all, begin, node);
  }
  /// The whole gradient of a node; none if it is not wanted.
  Tensor gradient(int node) const {
    const auto [base, begin] = list_.base(node);
    const TapeNode& of = list_[base];
    if ((list_[node].leaves & wanted_) == 0) return {};
    if (base == list_.result) return {spaces_.at[kernels::y_space], of.rows, of.columns, of.columns, pass_.type};
    const Tensor all = of.kind == TapeKind::x           ? dx_
                       : of.kind == TapeKind::all       ? d_all_
                       : of.kind == TapeKind::parameter ? gradient_of_(of.n)
                                                        : at(plan_.gradient(base), base);
    return view(all, begin, node);
  }

  kernels::TapeRows index_rows(const TapeNode& of) const {
    const TapeNode& index = list_[of.b];
    const bool is_position = index.kind == TapeKind::position;
    return {is_position ? nullptr : spaces_.labels + index.n, spaces_.labels_of_row, index.n, of.rows, of.columns};
  }

  /// Blocks of the operands of a product.
  template <class Work>
  static void each_block(const TapeNode& of, Work&& work) {
    for (std::size_t r = 0; r<of.rows; r += of.n> 0 ? of.n : of.rows) {
      const auto block = [&, r](const Tensor& tensor) { return of.n == 0 || !tensor ? tensor : tensor.rows_from(r, of.n); };
      work(block);
    }
  }

  void compute(int node) const {
    const TapeNode& of = list_[node];
    const Tensor y = value(node), a = value(of.a);
    if (of.kind == TapeKind::matmul) {
      const Tensor b = value(of.b);
      each_block(of, [&](const auto& block) {
        ops::matmul(pass_, block(a), Transpose::no, block(b), of.transposed ? Transpose::yes : Transpose::no, block(y));
      });
    } else if (of.kind == TapeKind::dropout) {
      ops::dropout(pass_, static_cast<double>(of.k), a, y, static_cast<std::uint32_t>(of.n));
    } else {
      with_element(y.type, [&]<class E>() {
        E* const to = static_cast<E*>(y.data);
        if (of.kind == TapeKind::transpose)
          kernels::transpose_matrix(*pass_.stream, to, static_cast<const E*>(a.data), a.rows, a.columns,
                                    kernels::Write::overwrite);
        else
          kernels::gather_rows(*pass_.stream, to, static_cast<const E*>(a.data), index_rows(of));
      });
    }
  }

  void differentiate(const TapeGroup& group) const {
    const int node = group.nodes.front();
    const TapeNode& of = list_[node];
    if ((of.leaves & wanted_) == 0) return;
    const Tensor dy = gradient(node), da = gradient(of.a);
    const auto clear = [&](int operand, bool clears) {
      if (clears && gradient(operand)) ops::fill_zero(pass_, gradient(list_.base(operand).first));
    };
    const Out write_a = group.sets[0] ? Out::overwrite : Out::add;
    if (of.kind == TapeKind::matmul) {
      const Tensor db = gradient(of.b), a = value(of.a), b = value(of.b);
      const Out write_b = group.sets[1] ? Out::overwrite : Out::add;
      clear(of.a, group.clears[0]);
      each_block(of, [&](const auto& block) {
        if (da)
          ops::matmul(pass_, block(dy), Transpose::no, block(b), of.transposed ? Transpose::no : Transpose::yes, block(da),
                      write_a);
      });
      clear(of.b, group.clears[1]);
      each_block(of, [&](const auto& block) {
        if (!db) return;
        if (of.transposed)
          ops::matmul(pass_, block(dy), Transpose::yes, block(a), Transpose::no, block(db), write_b);
        else
          ops::matmul(pass_, block(a), Transpose::yes, block(dy), Transpose::no, block(db), write_b);
      });
      return;
    }
    if (!da) return;
    clear(of.a, group.clears[0]);
    if (of.kind == TapeKind::dropout && write_a == Out::overwrite)
      return ops::dropout(pass_, static_cast<double>(of.k), dy, da, static_cast<std::uint32_t>(of.n));
    with_element(dy.type, [&]<class E>() {
      const E* const from = static_cast<const E*>(dy.data);
      if (of.kind == TapeKind::dropout) {  // in place: nothing else reads dy
        ops::dropout(pass_, static_cast<double>(of.k), dy, dy, static_cast<std::uint32_t>(of.n));
        add(da, dy);
      } else if (of.kind == TapeKind::transpose) {
        kernels::transpose_matrix(*pass_.stream, static_cast<E*>(da.data), from, dy.rows, dy.columns,
                                  write_a == Out::add ? kernels::Write::add : kernels::Write::overwrite);
      } else if (da.type == DType::f32) {
        kernels::scatter_rows(*pass_.stream, da.floats(), from, index_rows(of));
      } else {
        kernels::scatter_rows(*pass_.stream, static_cast<E*>(da.data), from, index_rows(of));
      }
    });
  }

  void add(const Tensor& to, const Tensor& from) const { ops::add(pass_, to, to, from); }

  const TapePlan& plan_;
  const TapeList& list_;
  const Pass& pass_;
  const TapeSpaces spaces_;
  const Tensor dx_, all_, d_all_;
  const GradientOf gradient_of_;
  std::uint64_t wanted_ = 0;
};

/// The scratch memory of a pass. A composition may have divided it anywhere, but a GPU needs aligned numbers.
char* scratch_of(const Pass& pass) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pass.scratch.data);
  return reinterpret_cast<char*>(pass.on_gpu ? round_up(begin, TapePlan::alignment) : begin);
}

TapeSpaces spaces_of(const Pass& pass, void* saved, void* stats, void* scratch, void* y, void* dx,
                     float* const* gradients = nullptr) {
  TapeSpaces spaces;
  spaces.at[kernels::saved_space] = saved, spaces.at[kernels::stats_space] = stats;
  spaces.at[kernels::scratch_space] = scratch, spaces.at[kernels::x_space] = pass.x.data;
  spaces.at[kernels::y_space] = y, spaces.at[kernels::dx_space] = dx;
  for (std::size_t i = 0; i < pass.parameters.size(); ++i) {
    spaces.at[kernels::weights_space + i] = const_cast<void*>(pass.weights[pass.indices[i]]);  // no step writes it
    if (gradients) spaces.at[kernels::gradients_space + i] = gradients[pass.indices[i]];
  }
  spaces.type = pass.type;
  return spaces;
}

class RecordedLayer final : public Layer {
 public:
  RecordedLayer(std::size_t inputs, std::function<Value(Tape&, Value)> function, bool tiled)
      : recorder_(inputs, std::move(function), false, {}, tiled) {}
  std::vector<LayerParameter> parameters() const override { return recorder_.first().parameters; }
  std::size_t inputs() const override { return recorder_.inputs(); }
  std::size_t outputs() const override { return recorder_.outputs(); }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  MemorySizes sizes(const BatchSizes& batch) const override { return recorder_.plan(batch).sizes; }
  void forward(const ForwardPass& pass) const override {
    const TapePlan& plan = recorder_.plan(pass);
    const TapeSpaces spaces = spaces_of(pass, pass.saved.data, pass.stats.data, scratch_of(pass), pass.y.data, nullptr);
    TapePass(plan, pass, spaces, {}, [](std::size_t) { return Tensor(); }).forward();
  }
  void backward(const BackwardPass& pass) const override {
    const TapePlan& plan = recorder_.plan(pass);
    const TapeSpaces spaces =
        spaces_of(pass, pass.saved.data, pass.stats.data, scratch_of(pass), pass.dy.data, pass.dx.data, pass.gradients);
    TapePass(plan, pass, spaces, pass.dx, [&](std::size_t i) { return pass.gradient(i); }).backward();
  }
  const TapeList& list() const { return recorder_.first(); }

 private:
  Recorder recorder_;
};

class RecordedLoss final : public Loss {
 public:
  RecordedLoss(std::size_t inputs, std::function<Value(Tape&, Value)> function, RecordedLossOptions options)
      : recorder_(inputs, std::move(function), true, options) {}
  std::vector<LayerParameter> parameters() const override { return recorder_.first().parameters; }
  std::size_t inputs() const override { return recorder_.inputs(); }
  bool takes_labels() const override { return recorder_.options().labels > 0; }
  std::size_t targets() const override { return recorder_.options().labels + recorder_.options().targets; }
  std::size_t classes() const override { return recorder_.options().classes; }
  bool sees_all_ranks() const override {
    const std::vector<TapeNode>& nodes = recorder_.first().nodes;
    return std::any_of(nodes.begin(), nodes.end(), [](const TapeNode& node) { return node.kind == TapeKind::all; });
  }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }
  MemorySizes sizes(const BatchSizes& batch) const override { return recorder_.plan(batch).sizes; }
  void evaluate(const LossPass& pass) const override {
    const TapePlan& plan = recorder_.plan(pass);
    char* const memory = scratch_of(pass);
    TapeSpaces spaces = spaces_of(pass, memory, memory + plan.saved_bytes, memory + plan.saved_bytes + plan.stats_bytes,
                                  pass.losses, pass.dx.data, pass.gradients);
    spaces.at[kernels::targets_space] = pass.targets.data;
    spaces.at[kernels::all_space] = pass.all.data, spaces.at[kernels::all_dx_space] = pass.d_all.data;
    spaces.first_row = pass.first_row;
    spaces.labels = pass.labels, spaces.labels_of_row = recorder_.options().labels;
    spaces.loss_scale = pass.scale;
    const auto gradient_of = [&](std::size_t i) { return pass.gradient(i); };
    const TapePass run(plan, pass, spaces, pass.dx, gradient_of, pass.all, pass.d_all);
    run.forward();
    if (pass.dx || pass.gradients) run.backward();
  }
  const TapeList& list() const { return recorder_.first(); }

 private:
  Recorder recorder_;
};

template <class Recorded, class Base>
std::string text_of(const Base& base) {
  const auto* const recorded = dynamic_cast<const Recorded*>(&base);
  return recorded ? recorded->list().text(true) : "";
}

}  // namespace

LayerPtr recorded(std::size_t inputs, std::function<Value(Tape&, Value)> function, bool tiled) {
  return std::make_shared<RecordedLayer>(inputs, std::move(function), tiled);
}
LayerPtr recorded(std::size_t inputs, std::function<Value(Tape&, Value)> function) {
  return recorded(inputs, std::move(function), true);
}
LossPtr recorded_loss(std::size_t inputs, std::function<Value(Tape&, Value)> function, RecordedLossOptions options) {
  return std::make_shared<RecordedLoss>(inputs, std::move(function), options);
}

std::string recorded_text(const Layer& layer) { return text_of<RecordedLayer>(layer); }
std::string recorded_text(const Loss& loss) { return text_of<RecordedLoss>(loss); }

}  // namespace fsdp
