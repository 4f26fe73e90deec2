#include "fsdp/plan_check_gradients.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "fsdp/checked_list.hpp"

namespace fsdp {

namespace {

using enum OperationKind;

using Contribution = std::pair<int, int>;  // micro-batch, stage

/// A sum over micro-batches, [begin, end); `reduced`: over all ranks that have a part in it.
struct Sum {
  int begin, end;
  bool reduced;
};

/// How far the directions of an optimizer on whole matrices are.
enum class Matrices { none, parts, gathered, worked, returned, summed };

/// What has become of a unit's gradient.
struct UnitGradient {
  std::set<Contribution> whole, shard;  // what the buffers hold
  // Where gradients are kept in 16 bits, `whole` and `shard` are the fp32 sums, and these what is kept of them.
  std::set<Contribution> kept_whole, kept_shard;
  bool whole_is_kept = false, kept_is_reduced = false, master_is_kept = false;
  int cleared_for = -1;     // micro-batch
  bool reduced = false;     // over the ranks that have the same part
  std::map<int, Sum> sums;  // where they go in a tree: those that wait, by sum_at(); `reduced` is of the whole gradient then
  bool in_norm = false, clipped = false, used = false, updated = false;
  int counted = 0;  // rounds of statistics
  Matrices matrices = Matrices::none;
  Location part, all;  // where the matrices are
};

class GradientChecker : private CheckedList {
 public:
  GradientChecker(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                  std::size_t micro_batches)
      : CheckedList(plan, layout, placement, sizes, micro_batches, plan.update), units_(layout.units().size()) {}

  void check() {
    for (std::size_t i = 0; i < list_.size(); ++i) follow(i, list_[i]);
    check_end();
  }

 private:
  void follow(std::size_t i, const Operation& op) {
    const auto u = static_cast<std::size_t>(op.unit);
    switch (op.kind) {
      case clear:
        if (!units_[u].whole.empty()) fail(i, "clears gradients that are not reduced");
        units_[u].cleared_for = op.micro_batch;
        break;
      case head:
      case block_backward:
      case embedding_backward:
        for (const std::size_t unit : stage_units_[static_cast<std::size_t>(stage_of(op))])
          if (layout_.units()[unit].trainable) contribute(i, op, unit);
        break;
      case all_gather:
        if (op.quantity == Quantity::directions) gather_directions(i, op, u);
        break;
      case reduce_scatter:
        if (op.quantity == Quantity::directions)
          return_directions(i, op, units_[u]);
        else
          reduce_scatter_gradient(i, op, u);
        break;
      case all_reduce:
        sum_over_ranks(i, op, u);
        break;
      case round_at_random:
        if (op.quantity == Quantity::gradients) {
          keep_gradient(i, op, u);
        } else {
          if (!units_[u].updated) fail(i, "comes before the parameters are updated");
          if (std::exchange(units_[u].master_is_kept, true)) fail(i, "rounds parameters twice");
        }
        break;
      case widen:
        if (op.quantity == Quantity::gradients) {  // once more what the norm has seen
          if (!units_[u].in_norm) fail(i, "comes before the gradient is in the norm");
          units_[u].clipped = units_[u].used = false;
        } else if (units_[u].updated) {
          fail(i, "comes after the parameters are updated");
        }
        break;
      case sum_gradients:
        sum_in_tree(i, op, u);
        break;
      case add_squares:
        take_squares(i, u);
        break;
      case gradient_norm:
        if (!squares_are_summed_ || !loss_is_summed_) fail(i, "comes before its sums are over all ranks");
        norm_is_known_ = true;
        break;
      case clip_values:
        if (!norm_is_known_) fail(i, "comes before the gradient norm");
        if (units_[u].used) fail(i, "changes a gradient that the optimizer has read");
        if (std::exchange(units_[u].clipped, true)) fail(i, "clips a gradient twice");
        break;
      case statistics:
        if (!norm_is_known_) fail(i, "comes before the gradient norm");
        units_[u].used = true;
        if (op.round > reduced_rounds_) fail(i, format("comes before round {} is summed over the ranks", op.round - 1));
        if (units_[u].counted++ != op.round) fail(i, "counts a round twice, or not in order");
        break;
      case directions:
        if (!norm_is_known_) fail(i, "comes before the gradient norm");
        units_[u].used = true;
        if (std::exchange(units_[u].matrices, Matrices::parts) != Matrices::none) fail(i, "makes directions twice");
        units_[u].part = op.writes[0];
        break;
      case whole_matrices:
        if (units_[u].matrices != (is_scattered(u) ? Matrices::gathered : Matrices::parts) ||
            op.writes[0] != (is_scattered(u) ? units_[u].all : units_[u].part))
          fail(i, "works on matrices that are not whole");
        units_[u].matrices = Matrices::worked;
        break;
      case optimizer:
        update(i, op, u);
        break;
      default:
        break;
    }
  }

  /// The backward pass of a stage gives a micro-batch's gradient of a unit, or adds to it.
  void contribute(std::size_t i, const Operation& op, std::size_t u) {
    UnitGradient& unit = units_[u];
    const auto forget_what_is_kept = [](UnitGradient& of) {
      if (std::exchange(of.whole_is_kept, false)) of.whole.clear();
    };
    forget_what_is_kept(unit);
    const bool in_this_batch =
        std::any_of(unit.whole.begin(), unit.whole.end(), [&](const Contribution& one) { return one.first == op.micro_batch; });
    if (!in_this_batch && op.accumulate && unit.whole.empty() && unit.cleared_for != op.micro_batch)
      fail(i, format("adds to the gradient of {}, where another unit's may lie", name_of_unit(u)));
    if (!in_this_batch && !op.accumulate && !unit.whole.empty())
      fail(i, format("overwrites the gradient of {}, which is not reduced", name_of_unit(u)));
    if (!unit.whole.insert({op.micro_batch, stage_of(op)}).second)
      fail(i, format("counts a micro-batch twice in the gradient of {}", name_of_unit(u)));
    for (std::size_t other = 0; other < units_.size(); ++other) {
      if (other == u || !layout_.units()[other].trainable ||
          !overlap(u, plan_.whole_gradients[u], other, plan_.whole_gradients[other], DType::f32))
        continue;
      forget_what_is_kept(units_[other]);
      if (!units_[other].whole.empty())
        fail(i, format("overwrites the gradient of {}, which is not reduced", name_of_unit(other)));
    }
  }

  void reduce_scatter_gradient(std::size_t i, const Operation& op, std::size_t u) {
    UnitGradient& unit = units_[u];
    if (plan_.sums_in_a_tree) return add_to_tree(i, op, u, take_micro_batch(i, op, u, !is_replicated(u)));
    if (unit.whole.empty()) fail(i, "reduces nothing");
    if (is_narrow(u)) unit.shard.clear();  // fp32 sums of the micro-batches before are kept
    if (op.accumulate == unit.shard.empty())
      fail(i, op.accumulate ? "adds to a gradient that is not there" : "overwrites a gradient that is reduced already");
    for (const Contribution& one : unit.whole)
      if (!unit.shard.insert(one).second) fail(i, "counts a micro-batch twice");
    require_whole_micro_batches(i, u, unit.shard);
    unit.whole.clear();
    unit.whole_is_kept = false;
  }

  void sum_over_ranks(std::size_t i, const Operation& op, std::size_t u) {
    switch (op.quantity) {
      case Quantity::gradients:
        return sum_gradient_over_ranks(i, op, u);
      case Quantity::directions:
        if (units_[u].matrices != (is_scattered(u) ? Matrices::returned : Matrices::worked) || op.writes[0] != units_[u].part)
          fail(i, "sums directions that are not there");
        units_[u].matrices = Matrices::summed;
        break;
      case Quantity::statistics:
        for (std::size_t unit = 0; unit < units_.size(); ++unit)
          if (layout_.units()[unit].trainable && op.round < rounds_of(unit) && units_[unit].counted <= op.round)
            fail(i, format("misses the statistics of {}", name_of_unit(unit)));
        if (reduced_rounds_++ != op.round) fail(i, "sums a round over the ranks twice, or not in order");
        if (op.count != layout_.statistics_words(op.round)) fail(i, "sums a part");
        break;
      case Quantity::squares:
        for (std::size_t unit = 0; unit < units_.size(); ++unit)
          if (layout_.units()[unit].trainable && !units_[unit].in_norm)
            fail(i, format("misses the gradient of {}", name_of_unit(unit)));
        if (std::exchange(squares_are_summed_, true)) fail(i, "sums over the ranks twice");
        break;
      case Quantity::loss:
        if (std::exchange(loss_is_summed_, true)) fail(i, "sums over the ranks twice");
        break;
      case Quantity::parameters:
        fail(i, "sums parameters");
    }
  }

  void sum_gradient_over_ranks(std::size_t i, const Operation& op, std::size_t u) {
    UnitGradient& unit = units_[u];
    if (plan_.sums_in_a_tree && is_scattered(u)) {
      const auto sum = unit.sums.find(sum_at(u, op.writes[0]));
      if (sum == unit.sums.end()) fail(i, "sums what is not there over the ranks");
      if (sum->second.end - sum->second.begin > 1 || std::exchange(sum->second.reduced, true))
        fail(i, "sums over the ranks twice, or late");
    } else if (plan_.sums_in_a_tree) {
      require_whole_micro_batches(i, u, unit.whole);
      if (unit.whole.empty() || std::exchange(unit.reduced, true)) fail(i, "sums over the ranks twice");
    } else {
      if (unit.reduced) fail(i, "sums over the ranks twice");
      require_all(i, u, is_scattered(u) ? unit.shard : unit.whole);
      unit.reduced = true;
    }
  }

  void sum_in_tree(std::size_t i, const Operation& op, std::size_t u) {
    UnitGradient& unit = units_[u];
    const int from = sum_at(u, op.reads[0]);
    if (from < 0) {
      const bool is_reduced = std::exchange(unit.reduced, false);
      return add_to_tree(i, op, u, take_micro_batch(i, op, u, is_reduced));
    }
    const auto sum = unit.sums.find(from);
    if (sum == unit.sums.end()) fail(i, "adds a sum that is not there");
    const Sum taken = sum->second;
    unit.sums.erase(sum);
    add_to_tree(i, op, u, taken);
  }

  /// The whole gradient, which is that of this one micro-batch.
  Sum take_micro_batch(std::size_t i, const Operation& op, std::size_t u, bool is_reduced) {
    UnitGradient& unit = units_[u];
    if (unit.whole.empty()) fail(i, "reduces nothing");
    require_whole_micro_batches(i, u, unit.whole);
    for (const auto& [m, stage] : unit.whole)
      if (m != op.micro_batch) fail(i, format("takes micro-batch {} for its own", m));
    unit.whole.clear();
    return {op.micro_batch, op.micro_batch + 1, is_reduced};
  }

  /// In canonical order: 2^n micro-batches, of which the first is a multiple of 2^n, are summed before anything else joins
  /// them; then as many others as they are, or the last ones.
  void add_to_tree(std::size_t i, const Operation& op, std::size_t u, const Sum& sum) {
    std::map<int, Sum>& sums = units_[u].sums;
    const int to = sum_at(u, op.writes[0]);
    const auto before = sums.find(to);
    if (!op.accumulate) {
      if (before != sums.end()) fail(i, "overwrites a sum that waits");
      sums[to] = sum;
      return;
    }
    if (before == sums.end()) fail(i, "adds to a gradient that is not there");
    Sum& left = before->second;
    const int size = left.end - left.begin, more = sum.end - sum.begin;
    if (!left.reduced || !sum.reduced) fail(i, "adds what is not summed over all ranks");
    const bool is_subtree = (size & (size - 1)) == 0 && left.begin % size == 0 && left.end == sum.begin;
    if (!is_subtree || (more != size && (more > size || sum.end != static_cast<int>(micro_batches_))))
      fail(i, "adds in another order than the canonical one");
    left.end = sum.end;
  }

  /// fp32 sums go into what is kept of a gradient, and become it.
  void keep_gradient(std::size_t i, const Operation& op, std::size_t u) {
    UnitGradient& unit = units_[u];
    const bool is_whole = op.reads[0] == whole_gradients_[u];
    std::set<Contribution>& wide = is_whole ? unit.whole : unit.shard;
    std::set<Contribution>& kept = is_whole ? unit.kept_whole : unit.kept_shard;
    if (wide.empty()) fail(i, "keeps nothing");
    require_whole_micro_batches(i, u, wide);
    if (op.accumulate) {
      if (kept.empty()) fail(i, "adds to a gradient that is not there");
      for (const Contribution& one : wide)
        if (!kept.insert(one).second) fail(i, "counts a micro-batch twice");
      wide = kept;
    } else {
      if (!std::includes(wide.begin(), wide.end(), kept.begin(), kept.end())) fail(i, "overwrites a gradient that is kept");
      kept = wide;
    }
    if (is_whole) unit.whole_is_kept = true;
    unit.kept_is_reduced = unit.reduced;
  }

  /// The norm takes a gradient's squares.
  void take_squares(std::size_t i, std::size_t u) {
    UnitGradient& unit = units_[u];
    if (plan_.sums_in_a_tree) {
      const auto sum = unit.sums.find(0);
      if (sum == unit.sums.end() || unit.sums.size() != 1 || !sum->second.reduced || sum->second.begin != 0 ||
          sum->second.end != static_cast<int>(micro_batches_))
        fail(i, format("misses a micro-batch in the gradient of {}", name_of_unit(u)));
    } else {
      require_all(i, u, is_scattered(u) ? unit.shard : unit.whole);
      if (is_narrow(u)) {
        require_all(i, u, is_scattered(u) ? unit.kept_shard : unit.kept_whole);
        if (unit.kept_is_reduced != unit.reduced) fail(i, "finds a gradient that is kept otherwise");
      }
      if (unit.reduced != is_replicated(u))
        fail(i, unit.reduced ? "finds a gradient summed over ranks that have other parts"
                             : "finds a gradient that is not summed over all ranks");
    }
    if (std::exchange(unit.in_norm, true)) fail(i, "counts a gradient twice");
  }

  void gather_directions(std::size_t i, const Operation& op, std::size_t u) {
    if (units_[u].matrices != Matrices::parts || op.reads[0] != units_[u].part) fail(i, "gathers directions that are not made");
    for (std::size_t other = 0; other < units_.size(); ++other)
      if (other != u && (units_[other].matrices == Matrices::gathered || units_[other].matrices == Matrices::worked) &&
          overlap(u, op.writes[0], other, units_[other].all, DType::f32))
        fail(i, format("overwrites the matrices of {}, which are not given back", name_of_unit(other)));
    units_[u].matrices = Matrices::gathered;
    units_[u].all = op.writes[0];
  }

  void return_directions(std::size_t i, const Operation& op, UnitGradient& unit) {
    if (unit.matrices != Matrices::worked || op.reads[0] != unit.all || op.writes[0] != unit.part)
      fail(i, "gives back matrices that are not worked on");
    unit.matrices = Matrices::returned;
  }

  void update(std::size_t i, const Operation& op, std::size_t u) {
    UnitGradient& unit = units_[u];
    if (!norm_is_known_) fail(i, "comes before the gradient norm");
    unit.used = true;
    if (layout_.units()[u].rule->whole.work &&
        (unit.matrices != (is_replicated(u) ? Matrices::summed : Matrices::returned) || op.reads[1] != unit.part))
      fail(i, "comes before its directions are there from all ranks");
    if (reduced_rounds_ < rounds_of(u)) fail(i, "comes before its statistics are summed over the ranks");
    if (!layout_.units()[u].trainable) fail(i, "changes what is frozen");
    if (std::exchange(unit.updated, true)) fail(i, "takes a step twice");
  }

  /// Every trained unit is updated, and kept; all are clipped, or none.
  void check_end() const {
    const std::size_t last = list_.size() - 1;
    const bool clips = std::any_of(units_.begin(), units_.end(), [](const UnitGradient& unit) { return unit.clipped; });
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!layout_.units()[u].trainable) continue;
      if (!units_[u].updated) fail(last, format("is the last, and {} is not updated", name_of_unit(u)));
      if (layout_.units()[u].types.master != DType::f32 && !units_[u].master_is_kept)
        fail(last, format("is the last, and the new {} is not kept", name_of_unit(u)));
      if (clips && !units_[u].clipped) fail(last, format("is the last, and {} is not clipped, as others are", name_of_unit(u)));
    }
  }

  void require_whole_micro_batches(std::size_t i, std::size_t u, const std::set<Contribution>& have) const {
    std::map<int, std::size_t> counts;
    for (const auto& [m, stage] : have) ++counts[m];
    for (const auto& [m, n] : counts)
      if (n != stages_of(u).size()) fail(i, format("comes before all of micro-batch {} is in it", m));
  }

  void require_all(std::size_t i, std::size_t u, const std::set<Contribution>& have) const {
    for (std::size_t m = 0; m < micro_batches_; ++m)
      for (const int stage : stages_of(u))
        if (!have.contains({static_cast<int>(m), stage}))
          fail(i, format("misses micro-batch {} of stage {} in the gradient of {}", m, stage, name_of_unit(u)));
  }

  std::set<int> stages_of(std::size_t u) const {
    std::set<int> stages;
    for (std::size_t s = 0; s < stage_units_.size(); ++s)
      if (stage_units_[s].contains(u)) stages.insert(static_cast<int>(s));
    return stages;
  }

  const std::string& name_of_unit(std::size_t u) const { return layout_.units()[u].name; }
  int rounds_of(std::size_t u) const { return layout_.units()[u].rule->statistics.rounds; }
  bool is_narrow(std::size_t u) const { return layout_.units()[u].types.gradient != DType::f32; }
  bool is_scattered(std::size_t u) const {
    const Unit& unit = layout_.units()[u];
    return unit.sharded && unit.shards > 1 && placement_.optimizer_state == Place::sharded;
  }
  bool is_replicated(std::size_t u) const { return placement_.axis != ShardAxis::world || !is_scattered(u); }

  std::vector<UnitGradient> units_;
  int reduced_rounds_ = 0;
  bool norm_is_known_ = false, squares_are_summed_ = false, loss_is_summed_ = false;
};

}  // namespace

void check_gradient_sums(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                         std::size_t micro_batches) {
  GradientChecker(plan, layout, placement, sizes, micro_batches).check();
}

}  // namespace fsdp
