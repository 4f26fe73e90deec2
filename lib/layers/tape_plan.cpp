#include "layers/tape_plan.hpp"

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

using kernels::TapeOp;
using kernels::TapeOperand;
using kernels::TapeRun;
using kernels::TapeStep;

namespace {

constexpr std::size_t no_slot = 0xffffffffu;

/// Memory by lifetimes: each piece gets the lowest place that is free from time `first` to `last`.
class Placer {
 public:
  explicit Placer(bool shares) : shares_(shares) {}
  std::size_t place(std::size_t size, std::size_t first, std::size_t last) {
    const std::size_t rounded = round_up(size, 64);
    std::size_t at = shares_ ? 0 : end_;
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.at < b.at; });
    for (const Piece& piece : pieces_)
      if (shares_ && piece.first <= last && first <= piece.last && at + rounded > piece.at && piece.at + piece.size > at)
        at = piece.at + piece.size;
    pieces_.push_back({at, rounded, first, last});
    end_ = std::max(end_, at + rounded);
    return at;
  }
  std::size_t end() const { return end_; }

 private:
  struct Piece {
    std::size_t at, size, first, last;
  };
  const bool shares_;
  std::vector<Piece> pieces_;
  std::size_t end_ = 0;
};

bool is_elementwise(TapeOp op) {
  return (op >= TapeOp::copy && op <= TapeOp::where) || (op >= TapeOp::log_backward && op <= TapeOp::else_backward) ||
         op == TapeOp::log_sum_exp_backward;
}

/// The operands whose values the derivative of a node reads: of operand a, of b or c, and `y` for the result.
struct Reads {
  bool a = false, b = false, c = false, y = false;
};
Reads reads_of(const TapeList& list, const TapeNode& node) {
  const bool to_a = node.a >= 0 && list[node.a].leaves != 0, to_b = node.b >= 0 && list[node.b].leaves != 0;
  if (node.kind != TapeKind::row || node.leaves == 0) return {};
  switch (node.op) {
    case TapeOp::multiply:
      return {.a = to_b, .b = to_a};
    case TapeOp::divide:
      return {.b = true, .y = to_b};
    case TapeOp::min:
    case TapeOp::max:
      return {.a = true, .b = true};
    case TapeOp::where:
      return {.a = true};
    case TapeOp::log:
    case TapeOp::square:
    case TapeOp::abs:
    case TapeOp::relu:
    case TapeOp::silu:
    case TapeOp::gelu_tanh:
    case TapeOp::gelu_erf:
    case TapeOp::clamp:
      return {.a = true};
    case TapeOp::exp:
    case TapeOp::sqrt:
    case TapeOp::tanh:
    case TapeOp::sigmoid:
    case TapeOp::softmax:
    case TapeOp::log_softmax:
      return {.y = true};
    case TapeOp::row_max:
    case TapeOp::log_sum_exp:
    case TapeOp::cross_entropy:
      return {.a = true, .y = true};
    default:
      return {};
  }
}

/// True if a value has one number for each row, computed from many.
bool is_reduction(const TapeNode& node) {
  return node.kind == TapeKind::row_sum ||
         (node.kind == TapeKind::row && node.op >= TapeOp::row_max && node.op <= TapeOp::pick && node.op != TapeOp::softmax &&
          node.op != TapeOp::log_softmax);
}

/// True if operand b of a node is an index, which is not read as a value.
bool has_index(const TapeNode& node) {
  return node.kind == TapeKind::rows_of ||
         (node.kind == TapeKind::row && (node.op == TapeOp::pick || node.op == TapeOp::cross_entropy));
}

std::vector<int> operands_of(const TapeNode& node) {
  std::vector<int> all;
  for (const int operand : {node.a, has_index(node) ? -1 : node.b, node.c})
    if (operand >= 0) all.push_back(operand);
  return all;
}

}  // namespace

/// Calls visit(operand's base, node) for each value that a node of a group reads.
template <class Visit>
void TapePlan::visit_users(Visit&& visit) const {
  for (const TapeGroup& group : groups_)
    for (const int node : group.nodes)
      for (const int operand : operands_of(list_[node])) visit(operand, node);
}

TapePlan::TapePlan(TapeList list, const BatchSizes& batch, bool is_loss, bool tiled)
    : list_(std::move(list)), batch_(batch), is_loss_(is_loss), tiled_(tiled) {
  const std::size_t n = list_.nodes.size();
  group_of_.assign(n, -1), shared_.assign(n, -1), reader_.assign(n, -1);
  whole_.assign(n, false), kept_.assign(n, false), read_by_whole_.assign(n, false), wide_.assign(n, false);
  has_gradient_.assign(n, false);
  values_.resize(n), gradients_.resize(n);
  find_gradients();
  find_groups();
  find_whole();
  place_values();
  place_gradients();
  emit();
}

/// Clears the leaves of nodes whose gradient is 0, because only what has no gradient reads them.
void TapePlan::find_gradients() {
  std::vector<bool> is_reached(list_.nodes.size());
  is_reached[static_cast<std::size_t>(list_.result)] = true;
  for (int i = static_cast<int>(list_.nodes.size()) - 1; i >= 0; --i) {
    TapeNode& node = list_.nodes[static_cast<std::size_t>(i)];
    if (!is_reached[static_cast<std::size_t>(i)]) node.leaves = 0;
    if (node.leaves == 0) continue;
    for (const int operand : operands_of(node)) is_reached[static_cast<std::size_t>(operand)] = true;
  }
}

/// Puts whole operations first that can be done, and else makes the longest possible run.
void TapePlan::find_groups() {
  std::vector<bool> live(list_.nodes.size());
  live[static_cast<std::size_t>(list_.result)] = true;
  for (int i = list_.result; i >= 0; --i)
    if (live[static_cast<std::size_t>(i)])
      for (const int operand : operands_of(list_[i])) live[static_cast<std::size_t>(operand)] = true;
  const auto is_waiting = [&](int i) {
    const TapeNode& node = list_[i];
    return live[static_cast<std::size_t>(i)] && !node.is_source() && !node.is_view() &&
           group_of_[static_cast<std::size_t>(i)] < 0;
  };
  const auto is_ready = [&](int i, int group) {
    const auto operands = operands_of(list_[i]);
    return std::all_of(operands.begin(), operands.end(), [&](int operand) {
      const int base = list_.base(operand).first, there = group_of_[static_cast<std::size_t>(base)];
      return list_[base].is_source() ||
             (there >= 0 && (there < group || (!list_[base].is_barrier() && list_[base].kind != TapeKind::column_sum)));
    });
  };
  const int count = list_.result + 1;
  const auto add = [&](int i) {
    group_of_[static_cast<std::size_t>(i)] = static_cast<int>(groups_.size()) - 1;
    groups_.back().nodes.push_back(i);
  };
  const auto rows_of = [&](int i) {
    return list_[list_[i].kind == TapeKind::column_sum ? list_.base(list_[i].a).first : i].rows;
  };
  while (group_of_[static_cast<std::size_t>(list_.result)] < 0) {
    int first = -1;
    const int next = static_cast<int>(groups_.size());
    for (int i = 0; i < count; ++i)
      if (is_waiting(i) && is_ready(i, next) && (first < 0 || (list_[i].is_barrier() && !list_[first].is_barrier()))) first = i;
    expect(first >= 0, "a recording has an operation that can be done next");
    groups_.push_back({.is_run = !list_[first].is_barrier(), .rows = rows_of(first)});
    add(first);
    for (int i = first; groups_.back().is_run && i < count; ++i)
      if (is_waiting(i) && !list_[i].is_barrier() && rows_of(i) == groups_.back().rows && is_ready(i, next)) add(i);
  }
}

void TapePlan::find_whole() {
  const auto index = [](int i) { return static_cast<std::size_t>(i); };
  whole_[index(list_.result)] = true;
  for (const TapeGroup& group : groups_)
    for (const int node : group.nodes)
      if (!tiled_ || list_[node].is_barrier() || list_[node].kind == TapeKind::column_sum) whole_[index(node)] = true;
  visit_users([&](int operand, int user) {
    const int base = list_.base(operand).first;
    if (list_[base].is_source()) return;
    if (group_of_[index(base)] != group_of_[index(user)]) whole_[index(base)] = true;
    if (list_[user].is_barrier()) read_by_whole_[index(base)] = true;
    if (list_[operand].leaves != 0 && list_[user].leaves != 0 &&
        (group_of_[index(base)] != group_of_[index(user)] || list_[base].kind == TapeKind::column_sum))
      has_gradient_[index(base)] = true;
  });
  const auto keep = [&](int operand, int reader) {
    const int base = list_.base(operand).first;
    if (list_[base].is_source()) return;
    reader_[index(base)] = !kept_[index(base)] || reader_[index(base)] == reader ? reader : -1;
    kept_[index(base)] = whole_[index(base)] = true;
  };
  if (!tiled_)
    for (const TapeGroup& group : groups_)
      for (const int node : group.nodes)
        if (node != list_.result) keep(node, -1);
  for (const TapeGroup& group : groups_)
    for (const int i : group.nodes)
      if (const TapeNode& node = list_[i]; node.kind == TapeKind::matmul && node.leaves != 0) {
        if (list_[node.a].leaves != 0) keep(node.b, group_of_[index(i)]);
        if (list_[node.b].leaves != 0) keep(node.a, group_of_[index(i)]);
      }
  for (std::size_t g = groups_.size(); g-- > 0;) {
    if (!groups_[g].is_run) continue;
    std::vector<int> wanted;
    for (const int i : groups_[g].nodes) {
      const TapeNode& node = list_[i];
      const Reads reads = reads_of(list_, node);
      if (reads.a) wanted.push_back(node.a);
      if (reads.b && !has_index(node)) wanted.push_back(node.b);
      if (reads.c) wanted.push_back(node.c);
      if (reads.y) wanted.push_back(i);
    }
    std::vector<bool> seen(list_.nodes.size());
    while (!wanted.empty()) {
      const int base = list_.base(wanted.back()).first;
      wanted.pop_back();
      if (list_[base].is_source() || seen[index(base)]) continue;
      seen[index(base)] = true;
      const bool elsewhere = group_of_[index(base)] != static_cast<int>(g) || list_[base].kind == TapeKind::column_sum;
      if (elsewhere || (is_reduction(list_[base]) && base != list_.result)) keep(base, static_cast<int>(g));
      if (kept_[index(base)]) continue;
      for (const int operand : operands_of(list_[base])) wanted.push_back(operand);
    }
  }
  for (std::size_t i = 0; i < list_.nodes.size(); ++i) {
    const TapeNode& node = list_.nodes[i];
    const bool is_result = static_cast<int>(i) == list_.result;
    wide_[i] = is_result ? is_loss_ : (node.rows == 1 || node.columns == 1) && !read_by_whole_[i] && !node.is_barrier();
  }
}

std::size_t TapePlan::bytes_of(int node) const {
  return list_[node].rows * list_[node].columns *
         (wide_[static_cast<std::size_t>(node)] ? sizeof(float) : size_of(batch_.type));
}

void TapePlan::place_values() {
  Placer saved(false), stats(false), rest(tiled_);
  std::vector<std::size_t> last(list_.nodes.size());
  visit_users([&](int operand, int user) {
    auto& until = last[static_cast<std::size_t>(list_.base(operand).first)];
    until = std::max(until, static_cast<std::size_t>(group_of_[static_cast<std::size_t>(user)]));
  });
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (const int node : groups_[g].nodes) {
      const auto i = static_cast<std::size_t>(node);
      TapePlace& place = values_[i];
      if (!whole_[i]) continue;
      if (node == list_.result)
        place = {kernels::y_space, 0, wide_[i]};
      else if (kept_[i] && wide_[i])
        place = {kernels::stats_space, stats.place(bytes_of(node), 0, 0), true};
      else if (kept_[i])
        place = {kernels::saved_space, saved.place(bytes_of(node), 0, 0), false};
      else
        place = {kernels::scratch_space, rest.place(bytes_of(node), g, last[i]), wide_[i]};
    }
  saved_bytes = saved.end(), stats_bytes = stats.end(), scratch_bytes = rest.end();
}

void TapePlan::place_gradients() {
  const auto index = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<int> born(list_.nodes.size(), -1);  // groups, which backward does in reverse order
  visit_users([&](int operand, int user) {
    const int base = list_.base(operand).first;
    if (has_gradient_[index(base)] && list_[operand].leaves != 0 && list_[user].leaves != 0)
      born[index(base)] = std::max(born[index(base)], group_of_[index(user)]);
  });
  std::vector<int> all;
  for (int i = 0; i < static_cast<int>(list_.nodes.size()); ++i)
    if (has_gradient_[index(i)] && born[index(i)] >= 0) all.push_back(i);
  std::stable_sort(all.begin(), all.end(), [&](int a, int b) { return born[index(a)] > born[index(b)]; });
  // A gradient replaces one of the same size in place if the run that writes it is the last one to read the other: it does so
  // for one tile after another.
  // Likewise, the gradient of a product replaces its value, if that run is the only one that still reads it.
  std::map<int, int> heir_of, source_of;
  for (const int node : all) {
    const TapeGroup& group = groups_[index(born[index(node)])];
    const bool full = group.is_run && list_[node].rows == group.rows && tiled_;
    if (full && list_[node].is_barrier() && kept_[index(node)] && reader_[index(node)] == born[index(node)]) {
      gradients_[index(node)] = values_[index(node)], shared_[index(node)] = born[index(node)];
      continue;
    }
    for (const int other : group.nodes)
      if (full && !source_of.count(node) && !heir_of.count(other) && !gradients_[index(other)] && has_gradient_[index(other)] &&
          born[index(other)] >= 0 && list_[other].rows == list_[node].rows && list_[other].columns == list_[node].columns &&
          wide_[index(other)] == wide_[index(node)])
        heir_of[other] = node, source_of[node] = other, shared_[index(node)] = born[index(node)];
  }
  Placer placer(tiled_);
  for (const int node : all) {
    if (source_of.count(node) || gradients_[index(node)]) continue;
    int end = node;
    while (heir_of.count(end)) end = heir_of[end];
    const auto G = static_cast<int>(groups_.size());
    const std::size_t at = placer.place(bytes_of(node), static_cast<std::size_t>(G - born[index(node)]),
                                        static_cast<std::size_t>(G - group_of_[index(end)]));
    for (int each = node;; each = heir_of[each]) {
      gradients_[index(each)] = {kernels::scratch_space, at, wide_[index(each)]};
      if (each == end) break;
    }
  }
  scratch_bytes = std::max(scratch_bytes, placer.end());
}

/// Writes the steps of one pass of a run.
class TapePlan::Emitter {
 public:
  Emitter(TapePlan& plan, const TapeGroup& group, bool backward)
      : plan_(plan),
        list_(plan.list_),
        group_(group),
        g_(static_cast<int>(&group - plan.groups_.data())),
        backward_(backward) {}

  TapeSteps forward() {
    for (const int node : group_.nodes) {
      const TapePlace& place = plan_.value(node);
      if (list_[node].kind == TapeKind::column_sum) {
        emit({.op = TapeOp::copy,
              .adds = true,
              .out = sum_of(node, false, true),
              .a = use(list_[node].a, list_[node].columns),
              .columns = list_[node].columns});
        continue;
      }
      const bool direct = place && is_fp32(place);
      const TapeOperand out = direct ? operand_of(place, node) : slot(node);
      operands_[node] = out;
      compute(node, out);
      if (place && !direct)
        emit({.op = TapeOp::store, .out = operand_of(place, node), .a = out, .columns = list_[node].columns});
      if (place && !direct && plan_.kept_[index(node)])  // later operations read what backward will read
        emit({.op = TapeOp::load, .out = out, .a = operand_of(place, node), .columns = list_[node].columns});
    }
    return finish();
  }

  TapeSteps backward(std::vector<bool>& has_contribution) {
    has_contribution_ = &has_contribution;
    for (auto at = group_.nodes.rbegin(); at != group_.nodes.rend(); ++at)
      if (list_[*at].leaves != 0) differentiate(*at);
    for (const auto& [node, gradient] : outside_) {  // in the order of nodes
      const TapePlace place = target_of(node);
      const bool adds = has_contribution[index(node)];
      has_contribution[index(node)] = true;
      if (gradient.slot == TapeOperand::none) continue;  // it is written in its place
      emit({.op = is_fp32(place) ? TapeOp::copy : TapeOp::store,
            .adds = adds,
            .out = operand_of(place, node),
            .a = gradient,
            .columns = list_[node].columns,
            .serves = list_[node].leaves});
    }
    for (TapeSum& sum : result_.sums) {
      sum.sets = sum.sets && !has_contribution[index(sum.node)];
      has_contribution[index(sum.node)] = true;
    }
    return finish();
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  bool is_fp32(const TapePlace& place) const { return place.wide || plan_.batch_.type == DType::f32; }
  bool broadcasts(int node) const { return plan_.is_broadcast(node, group_); }

  TapeOperand operand_of(const TapePlace& place, int node) const {
    return {.space = place.space, .offset = place.offset, .stride = broadcasts(node) ? 0 : list_[node].columns};
  }
  /// Memory in the tile for rows of `node`.
  TapeOperand slot(int node) {
    const std::size_t columns = list_[node].columns;
    slots_.push_back((broadcasts(node) ? 1 : TapeRun::tile_rows) * columns);
    return {.space = kernels::tile_space,
            .slot = static_cast<std::uint32_t>(slots_.size() - 1),
            .stride = broadcasts(node) ? 0 : columns};
  }
  void emit(TapeStep step) {
    result_.widest = std::max(result_.widest, step.columns);
    result_.steps.push_back(step);
  }

  /// Value `node` for a step on n columns.
  TapeOperand use(int node, std::size_t n) {
    const auto [base, begin] = list_.base(node);
    TapeOperand operand = value_of(base);
    operand.offset += begin * sizeof(float);
    operand.one_column = list_[node].columns == 1 && n > 1;
    return operand;
  }
  TapeOperand value_of(int node) {
    if (const auto found = operands_.find(node); found != operands_.end()) return found->second;
    const TapeNode& of = list_[node];
    TapePlace place = plan_.value(node);
    if (of.kind == TapeKind::x) place = {kernels::x_space, 0, false};
    if (of.kind == TapeKind::all) place = {kernels::all_space, 0, false};
    if (of.kind == TapeKind::parameter) place = {static_cast<std::uint32_t>(kernels::weights_space + of.n), 0, false};
    if (of.kind == TapeKind::targets) place = {kernels::targets_space, 0, true};
    const bool is_here = of.is_source() || !backward_ || plan_.kept_[index(node)];
    TapeOperand operand;
    if (place && is_here && is_fp32(place)) {
      operand = operand_of(place, node);
    } else {
      operand = slot(node);
      if (place && is_here)
        emit({.op = TapeOp::load, .out = operand, .a = operand_of(place, node), .columns = of.columns, .serves = 0});
      else if (of.kind == TapeKind::number)
        emit({.op = TapeOp::fill, .out = operand, .columns = 1, .k = of.k, .serves = 0});
      else if (of.kind == TapeKind::labels)
        emit({.op = TapeOp::label, .out = operand, .columns = 1, .label = of.n, .serves = 0});
      else if (of.kind == TapeKind::position)
        emit({.op = TapeOp::position, .out = operand, .columns = 1, .n = of.n, .own = of.own, .serves = 0});
      else
        compute(node, operand);
    }
    return operands_[node] = operand;
  }

  /// Computes a node of the run. Steps with `serves` 0 serve what reads their results: see finish().
  void compute(int node, const TapeOperand& out) {
    const TapeNode& of = list_[node];
    TapeStep step{.op = of.op, .out = out, .columns = of.columns, .k = of.k, .m = of.m, .serves = 0};
    if (of.kind == TapeKind::join) {
      step.op = TapeOp::copy;
      step.columns = list_[of.a].columns, step.a = use(of.a, step.columns);
      emit(step);
      step.out.offset += step.columns * sizeof(float);
      step.columns = list_[of.b].columns, step.a = use(of.b, step.columns);
      return emit(step);
    }
    if (of.kind == TapeKind::row_sum) step.op = TapeOp::copy, step.sums = true;
    if (of.kind == TapeKind::row_sum || is_reduction(of)) step.columns = list_[of.a].columns;
    step.a = use(of.a, step.columns);
    if (has_index(of))
      set_index(step, of.b);
    else if (of.b >= 0)
      step.b = use(of.b, step.columns);
    if (of.c >= 0) step.c = use(of.c, step.columns);
    emit(step);
  }
  void set_index(TapeStep& step, int node) const {
    if (list_[node].kind == TapeKind::position)
      step.n = list_[node].n, step.own = list_[node].own;
    else
      step.label = list_[node].n;
  }

  /// The gradient of a node of the run, for a step on n columns.
  TapeOperand gradient(int node, std::size_t n) {
    TapeOperand operand = inside_.count(node) ? inside_.at(node) : given(node);
    operand.one_column = list_[node].columns == 1 && n > 1;
    return operand;
  }
  /// The part of the gradient that later groups have computed.
  TapeOperand given(int node) {
    if (const auto found = loaded_.find(node); found != loaded_.end()) return found->second;
    const TapePlace place = node == plan_.list_.result ? TapePlace{kernels::y_space, 0, false} : plan_.gradient(node);
    TapeOperand from = operand_of(place, node);
    if (is_fp32(place)) return from;
    const TapeOperand operand = slot(node);
    emit({.op = TapeOp::load, .out = operand, .a = from, .columns = list_[node].columns, .serves = list_[node].leaves});
    return loaded_[node] = operand;
  }
  TapePlace target_of(int node) const {
    const TapeNode& of = list_[node];
    if (of.kind == TapeKind::x) return {kernels::dx_space, 0, false};
    if (of.kind == TapeKind::all) return {kernels::all_dx_space, 0, true};
    if (of.kind == TapeKind::parameter) return {static_cast<std::uint32_t>(kernels::gradients_space + of.n), 0, true};
    return plan_.gradient(node);
  }
  TapeOperand sum_of(int node, bool sets, bool is_value) {
    const auto found =
        std::find_if(result_.sums.begin(), result_.sums.end(), [&](const TapeSum& sum) { return sum.node == node; });
    std::size_t offset = result_.sum_floats;
    if (found == result_.sums.end()) {
      const std::size_t n = list_[node].columns;
      result_.sums.push_back({node, offset, n, sets, is_value ? ~std::uint64_t{0} : list_[node].leaves});
      result_.sum_floats += round_up(n, 16);
    } else {
      offset = found->offset;
    }
    return {.space = kernels::sums_space, .offset = offset * sizeof(float)};
  }

  /// Adds the step's result, on step.columns columns, to the gradient of `operand`.
  void contribute(int operand, TapeStep step) {
    const TapeNode& of = list_[operand];
    if (of.leaves == 0) return;
    const auto [base, begin] = list_.base(operand);
    step.serves = of.leaves;
    step.sums = of.columns == 1 && step.columns > 1;
    if (broadcasts(base)) {
      step.out = sum_of(base, list_[base].kind != TapeKind::parameter, false);
      step.adds = true;
    } else {
      const bool is_outside = plan_.group_of_[index(base)] != g_;
      auto& gradients = is_outside ? outside_ : inside_;
      const bool partial = of.columns < list_[base].columns || step.op == TapeOp::pick_backward;
      if (!gradients.count(base)) {
        const TapePlace target = is_outside ? target_of(base) : TapePlace{};
        const bool direct = is_outside && is_fp32(target) && plan_.shared_[index(base)] != g_;
        if (direct) {
          gradients[base] = operand_of(target, base);
          step.adds = list_[base].kind == TapeKind::parameter || (*has_contribution_)[index(base)];
        } else {
          gradients[base] = slot(base);
          step.adds = !is_outside && plan_.gradient(base);
          if (step.adds)
            emit({.op = TapeOp::copy,
                  .out = gradients[base],
                  .a = given(base),
                  .columns = list_[base].columns,
                  .serves = of.leaves});
        }
        if (partial && !step.adds)
          emit({.op = TapeOp::fill, .out = gradients[base], .columns = list_[base].columns, .serves = of.leaves}),
              step.adds = true;
      } else {
        step.adds = true;
      }
      step.out = gradients.at(base);
    }
    step.out.offset += begin * sizeof(float);
    emit(step);
  }
  void differentiate(int node);

  TapeSteps finish();

  TapePlan& plan_;
  const TapeList& list_;
  const TapeGroup& group_;
  const int g_;
  const bool backward_;
  std::vector<bool>* has_contribution_ = nullptr;
  TapeSteps result_;
  std::vector<std::size_t> slots_;               // floats of each
  std::map<int, TapeOperand> operands_;          // of values
  std::map<int, TapeOperand> loaded_;            // of gradients that later groups have computed
  std::map<int, TapeOperand> inside_, outside_;  // of gradients: nodes of this run, and others
};

void TapePlan::Emitter::differentiate(int node) {
  const TapeNode& of = list_[node];
  const auto with = [&](int operand, TapeOp op, std::size_t n, bool b = false, bool c = false, float k = 0, float m = 0) {
    if (list_[operand].leaves == 0) return;
    TapeStep step{.op = op, .a = gradient(node, n), .columns = n, .k = k, .m = m};
    if (b) step.b = use(of.a, n);
    if (c) step.c = use(node, n);
    contribute(operand, step);
  };
  const std::size_t n = of.columns, of_a = of.a >= 0 ? list_[of.a].columns : 0;
  if (of.kind == TapeKind::row_sum || of.kind == TapeKind::column_sum) return with(of.a, TapeOp::copy, of_a);
  if (of.kind == TapeKind::join) {
    with(of.a, TapeOp::copy, of_a);
    if (list_[of.b].leaves == 0) return;
    TapeStep step{.op = TapeOp::copy, .a = gradient(node, n - of_a), .columns = n - of_a};
    step.a.one_column = false;
    step.a.offset += of_a * sizeof(float);
    return contribute(of.b, step);
  }
  switch (of.op) {
    case TapeOp::copy:
      return with(of.a, TapeOp::copy, n);
    case TapeOp::affine:
      return with(of.a, TapeOp::affine, n, false, false, of.k);
    case TapeOp::exp: {
      if (list_[of.a].leaves == 0) return;
      return contribute(of.a, {.op = TapeOp::multiply, .a = gradient(node, n), .b = use(node, n), .columns = n});
    }
    case TapeOp::log:
      return with(of.a, TapeOp::log_backward, n, true);
    case TapeOp::sqrt:
      return with(of.a, TapeOp::sqrt_backward, n, false, true);
    case TapeOp::square:
      return with(of.a, TapeOp::square_backward, n, true);
    case TapeOp::abs:
      return with(of.a, TapeOp::abs_backward, n, true);
    case TapeOp::tanh:
      return with(of.a, TapeOp::tanh_backward, n, false, true);
    case TapeOp::sigmoid:
      return with(of.a, TapeOp::sigmoid_backward, n, false, true);
    case TapeOp::relu:
      return with(of.a, TapeOp::relu_backward, n, true);
    case TapeOp::silu:
      return with(of.a, TapeOp::silu_backward, n, true);
    case TapeOp::gelu_tanh:
      return with(of.a, TapeOp::gelu_tanh_backward, n, true);
    case TapeOp::gelu_erf:
      return with(of.a, TapeOp::gelu_erf_backward, n, true);
    case TapeOp::clamp:
      return with(of.a, TapeOp::clamp_backward, n, true, false, of.k, of.m);
    case TapeOp::add:
      return with(of.a, TapeOp::copy, n), with(of.b, TapeOp::copy, n);
    case TapeOp::subtract:
      return with(of.a, TapeOp::copy, n), with(of.b, TapeOp::affine, n, false, false, -1);
    case TapeOp::multiply:
    case TapeOp::divide:
    case TapeOp::min:
    case TapeOp::max: {
      const bool is_min = of.op == TapeOp::min;
      for (const bool second : {false, true}) {
        const int operand = second ? of.b : of.a, other = second ? of.a : of.b;
        if (list_[operand].leaves == 0) continue;
        TapeStep step{.a = gradient(node, n), .columns = n};
        if (of.op == TapeOp::multiply)
          step.op = TapeOp::multiply, step.b = use(other, n);
        else if (of.op == TapeOp::divide && second)
          step.op = TapeOp::divisor_backward, step.b = use(of.b, n), step.c = use(node, n);
        else if (of.op == TapeOp::divide)
          step.op = TapeOp::divide, step.b = use(of.b, n);
        else
          step.op = is_min ? TapeOp::min_backward : TapeOp::max_backward, step.b = use(operand, n), step.c = use(other, n);
        contribute(operand, step);
      }
      return;
    }
    case TapeOp::where:
      return with(of.b, TapeOp::where_backward, n, true), with(of.c, TapeOp::else_backward, n, true);
    case TapeOp::row_max:
      return with(of.a, TapeOp::row_max_backward, of_a, true, true);
    case TapeOp::log_sum_exp:
      return with(of.a, TapeOp::log_sum_exp_backward, of_a, true, true);
    case TapeOp::softmax:
      return with(of.a, TapeOp::softmax_backward, n, false, true);
    case TapeOp::log_softmax:
      return with(of.a, TapeOp::log_softmax_backward, n, false, true);
    case TapeOp::cross_entropy:
    case TapeOp::pick: {
      TapeStep step{.op = of.op == TapeOp::pick ? TapeOp::pick_backward : TapeOp::cross_entropy_backward,
                    .a = gradient(node, of_a),
                    .columns = of_a};
      if (of.op == TapeOp::cross_entropy) step.b = use(of.a, of_a), step.c = use(node, 1);
      set_index(step, of.b);
      return contribute(of.a, step);
    }
    case TapeOp::count_loss:
      return contribute(of.a, {.op = TapeOp::loss_backward, .columns = 1});
    default:
      return;
  }
}

/// Completes steps: what each serves, which are flat, and the places of slots in the tile.
TapeSteps TapePlan::Emitter::finish() {
  std::vector<std::uint64_t> serves(slots_.size(), 0);
  for (auto at = result_.steps.rbegin(); at != result_.steps.rend(); ++at) {
    TapeStep& step = *at;
    if (!backward_) step.serves = ~std::uint64_t{0};
    if (step.serves == 0 && step.out.slot != TapeOperand::none) step.serves = serves[step.out.slot];
    for (const TapeOperand& operand : {step.a, step.b, step.c})
      if (operand.slot != TapeOperand::none) serves[operand.slot] |= step.serves;
  }
  struct Life {
    std::size_t first = no_slot, last = 0;
  };
  std::vector<Life> lives(slots_.size());
  for (std::size_t s = 0; s < result_.steps.size(); ++s)
    for (const TapeOperand* operand : {&result_.steps[s].out, &result_.steps[s].a, &result_.steps[s].b, &result_.steps[s].c})
      if (operand->slot != TapeOperand::none)
        lives[operand->slot].first = std::min(lives[operand->slot].first, s), lives[operand->slot].last = s;
  Placer placer(plan_.tiled_);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    places.push_back(placer.place(slots_[i] * sizeof(float), lives[i].first, lives[i].last));
  result_.widest = round_up(result_.widest, 16);
  const std::size_t begin = TapeRun::temporaries * result_.widest * sizeof(float);
  for (TapeStep& step : result_.steps) {
    const auto is_dense = [&](const TapeOperand& operand) {
      return operand.space == TapeOperand::none ||
             (!operand.one_column && operand.stride == step.columns && operand.space != kernels::sums_space);
    };
    step.flat =
        is_elementwise(step.op) && !step.sums && is_dense(step.out) && is_dense(step.a) && is_dense(step.b) && is_dense(step.c);
    step.once = step.out.space == kernels::tile_space && step.out.stride == 0;
    for (TapeOperand* operand : {&step.out, &step.a, &step.b, &step.c})
      if (operand->slot != TapeOperand::none) operand->offset += begin + places[operand->slot];
  }
  result_.tile_floats = (begin + placer.end()) / sizeof(float);
  return std::move(result_);
}

void TapePlan::emit() {
  const auto index = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<bool> has_contribution(list_.nodes.size());
  for (TapeGroup& group : groups_)
    if (group.is_run) group.forward = Emitter(*this, group, false).forward();
  for (std::size_t g = groups_.size(); g-- > 0;) {
    TapeGroup& group = groups_[g];
    if (group.is_run) {
      group.backward = Emitter(*this, group, true).backward(has_contribution);
      continue;
    }
    const TapeNode& node = list_[group.nodes.front()];
    for (const int k : {0, 1}) {
      const int operand = k == 0 ? node.a : node.b;
      if (node.leaves == 0 || operand < 0 || list_[operand].leaves == 0) continue;
      const int base = list_.base(operand).first;
      const bool is_first = !has_contribution[index(base)] && list_[base].kind != TapeKind::parameter;
      const bool covers = list_[operand].columns == list_[base].columns && node.kind != TapeKind::rows_of;
      group.sets[k] = is_first && covers, group.clears[k] = is_first && !covers;
      has_contribution[index(base)] = true;
    }
  }
  writes_dx = has_contribution[0];
  std::size_t tile_floats = 0, sum_floats = 0, steps = 0;  // tile_floats: of all tiles together
  for (const TapeGroup& group : groups_)
    for (const TapeSteps* pass : {&group.forward, &group.backward}) {
      const std::size_t parts = TapeRun::parts_of(group.rows, batch_.on_gpu);
      tile_floats = std::max(tile_floats, pass->tile_floats * (batch_.on_gpu ? parts : std::min(parts, batch_.threads)));
      sum_floats = std::max(sum_floats, pass->sum_floats * parts);
      steps = std::max(steps, pass->steps.size());
    }
  tiles_at = round_up(scratch_bytes, alignment);
  sums_at = round_up(tiles_at + tile_floats * sizeof(float), alignment);
  steps_at = round_up(sums_at + sum_floats * sizeof(float), alignment);
  scratch_bytes = batch_.on_gpu ? steps_at + steps * sizeof(TapeStep) + alignment : sums_at + sum_floats * sizeof(float);
  const std::size_t R = batch_.rows();
  const auto per_row = [&](std::size_t bytes, std::size_t size) { return (bytes + R * size - 1) / (R * size); };
  if (is_loss_)
    sizes = {.scratch = per_row(saved_bytes + stats_bytes + scratch_bytes, size_of(batch_.type))};
  else
    sizes = {per_row(saved_bytes, size_of(batch_.type)), per_row(stats_bytes, sizeof(float)),
             per_row(scratch_bytes, size_of(batch_.type))};
}

}  // namespace fsdp
