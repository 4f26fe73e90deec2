#include "plan/check/gradient_states.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

using enum OperandName;

void GradientStates::check() {
  for (at_ = 0; at_ < list_.size(); ++at_)
    if (const auto follow = list_[at_].kind->follow) follow(*this, list_[at_]);
  at_ = list_.size() - 1;
  check_end();
}

// --- Contributions and their sums ---

void GradientStates::contribute(const Operation& op) {
  for (const std::size_t u : stage_units_[static_cast<std::size_t>(op.stage)])
    if (is_trained(u)) contribute_to(op, u);
}

/// Forgets the fp32 sums that are also kept in 16 bits: their memory may be used again.
void GradientStates::forget_what_is_kept(UnitGradient& of) {
  if (std::exchange(of.whole_is_kept, false)) of.whole.clear();
}

void GradientStates::contribute_to(const Operation& op, std::size_t u) {
  UnitGradient& unit = units_[u];
  forget_what_is_kept(unit);
  const bool in_this_batch =
      std::any_of(unit.whole.begin(), unit.whole.end(), [&](const Contribution& one) { return one.first == op.micro_batch; });
  if (!in_this_batch && op.accumulate && unit.whole.empty() && unit.cleared_for != op.micro_batch)
    fail(format("adds to the gradient of {}, but this memory may hold another unit's gradient", name_of_unit(u)));
  if (!in_this_batch && !op.accumulate && !unit.whole.empty())
    fail(format("overwrites the gradient of {}, which is not reduced", name_of_unit(u)));
  if (!unit.whole.insert({op.micro_batch, op.stage}).second)
    fail(format("counts a micro-batch twice in the gradient of {}", name_of_unit(u)));
  for (std::size_t other = 0; other < units_.size(); ++other) {
    if (other == u || !is_trained(other) || !share_memory(u, other)) continue;
    forget_what_is_kept(units_[other]);
    if (!units_[other].whole.empty()) fail(format("overwrites the gradient of {}, which is not reduced", name_of_unit(other)));
  }
}

void GradientStates::clear(const Operation& op) {
  forget_what_is_kept(unit_of(op));
  if (!unit_of(op).whole.empty()) fail("clears gradients that are not reduced");
  unit_of(op).cleared_for = op.micro_batch;
}

void GradientStates::reduce_scatter(const Operation& op) {
  const std::size_t u = u_of(op);
  UnitGradient& unit = units_[u];
  if (plan_.sums_in_a_tree) return add_to_tree(op, u, op.at(sum), take_micro_batch(op, u, !is_replicated(u)));
  if (unit.whole.empty()) fail("reduces a gradient that does not exist");
  if (is_16_bit(u)) unit.shard.clear();  // the fp32 sums of earlier micro-batches are in the kept gradient
  if (op.accumulate == unit.shard.empty())
    fail(op.accumulate ? "adds to a gradient that does not exist" : "overwrites a gradient that is reduced already");
  for (const Contribution& one : unit.whole)
    if (!unit.shard.insert(one).second) fail("counts a micro-batch twice");
  require_whole_micro_batches(unit.shard, stages_of(u).size());
  unit.whole.clear();
  unit.whole_is_kept = false;
}

void GradientStates::all_reduce(const Operation& op) {
  const std::size_t u = u_of(op);
  UnitGradient& unit = units_[u];
  if (plan_.sums_in_a_tree && is_scattered(u)) {
    const auto found = unit.sums.find(sum_at(u, op.at(sum)));
    if (found == unit.sums.end()) fail("sums over the ranks, but the gradient does not exist");
    if (found->second.end - found->second.begin > 1 || std::exchange(found->second.reduced, true))
      fail("sums over the ranks twice, or after other micro-batches were added");
  } else if (plan_.sums_in_a_tree) {
    if (op.at(sum) != plan_.at_work(plan_.whole_gradients[u])) fail("has the gradient in another place than the plan");
    require_whole_micro_batches(unit.whole, stages_of(u).size());
    if (unit.whole.empty() || std::exchange(unit.reduced, true)) fail("sums over the ranks twice");
  } else {
    if (unit.reduced) fail("sums over the ranks twice");
    require_all(u, is_scattered(u) ? unit.shard : unit.whole);
    unit.reduced = true;
  }
}

void GradientStates::sum_in_tree(const Operation& op) {
  const std::size_t u = u_of(op);
  UnitGradient& unit = units_[u];
  if (!plan_.sums_in_a_tree) fail("sums up gradients, but in this plan the reductions do that");
  if (op.at(from) == plan_.at_work(plan_.whole_gradients[u])) {
    const bool is_reduced = std::exchange(unit.reduced, false);
    return add_to_tree(op, u, op.at(to), take_micro_batch(op, u, is_reduced));
  }
  const auto found = unit.sums.find(sum_at(u, op.at(from)));
  if (found == unit.sums.end()) fail("adds a sum that does not exist");
  const Sum taken = found->second;
  unit.sums.erase(found);
  add_to_tree(op, u, op.at(to), taken);
}

/// Removes the whole gradient, which must be that of this micro-batch only, and returns it as a sum.
GradientStates::Sum GradientStates::take_micro_batch(const Operation& op, std::size_t u, bool is_reduced) {
  UnitGradient& unit = units_[u];
  if (unit.whole.empty()) fail("reduces a gradient that does not exist");
  require_whole_micro_batches(unit.whole, stages_of(u).size());
  for (const auto& [m, stage] : unit.whole)
    if (m != op.micro_batch) fail(format("takes the gradient of micro-batch {} instead of its own", m));
  unit.whole.clear();
  return {op.micro_batch, op.micro_batch + 1, is_reduced};
}

/// Checks the canonical order. The sum that is added to must cover 2^n micro-batches, and the number of the first of them must
/// be a multiple of 2^n. The added sum must cover the next 2^n micro-batches, or fewer at the end of the update.
void GradientStates::add_to_tree(const Operation& op, std::size_t u, const Location& place, const Sum& sum) {
  std::map<int, Sum>& sums = units_[u].sums;
  const int there = sum_at(u, place);
  if (there < 0) fail("has its sum in another place than the plan");
  const auto before = sums.find(there);
  if (!op.accumulate) {
    if (before != sums.end()) fail("overwrites a sum that is not added yet");
    sums[there] = sum;
    return;
  }
  if (before == sums.end()) fail("adds to a gradient that does not exist");
  Sum& left = before->second;
  const int size = left.end - left.begin, more = sum.end - sum.begin;
  if (!left.reduced || !sum.reduced) fail("adds a gradient that is not summed over all ranks");
  const bool is_subtree = (size & (size - 1)) == 0 && left.begin % size == 0 && left.end == sum.begin;
  if (!is_subtree || (more != size && (more > size || sum.end != static_cast<int>(micro_batches_))))
    fail("adds in another order than the canonical one");
  left.end = sum.end;
}

// --- State in 16 bits ---

void GradientStates::keep_gradient(const Operation& op) {
  UnitGradient& unit = unit_of(op);
  const bool is_whole = op.find(whole_gradient) != nullptr;
  std::set<Contribution>& wide = is_whole ? unit.whole : unit.shard;
  std::set<Contribution>& kept = is_whole ? unit.kept_whole : unit.kept_shard;
  if (wide.empty()) fail("rounds a gradient that does not exist");
  if (wide.rbegin()->first != op.micro_batch) fail("is in another micro-batch than the gradient that it rounds");
  require_whole_micro_batches(wide, stages_of(u_of(op)).size());
  if (op.accumulate) {
    if (kept.empty()) fail("adds to a gradient that does not exist");
    for (const Contribution& one : wide)
      if (!kept.insert(one).second) fail("counts a micro-batch twice");
    wide = kept;
  } else {
    if (!std::includes(wide.begin(), wide.end(), kept.begin(), kept.end())) fail("overwrites a gradient that is kept");
    kept = wide;
  }
  if (is_whole) unit.whole_is_kept = true;
  unit.kept_is_reduced = unit.reduced;
}

void GradientStates::keep_and_square(const Operation& op) {
  keep_gradient(op);
  take_squares(op);
}

void GradientStates::keep_master(const Operation& op) {
  if (!unit_of(op).updated) fail("comes before the parameters are updated");
  if (std::exchange(unit_of(op).master_is_kept, true)) fail("rounds parameters twice");
}

/// Restores the fp32 values that the norm was computed from, so that operations which change them must run again.
void GradientStates::upcast_gradient(const Operation& op) {
  UnitGradient& unit = unit_of(op);
  if (!unit.in_norm) fail("comes before the gradient is in the norm");
  if (!unit.used && !unit.done.empty())
    fail(format("overwrites the result of '{}', which nothing has read", (*unit.done.begin())->name));
  unit.used = false;
  unit.done.clear();
}

void GradientStates::upcast_master(const Operation& op) {
  if (unit_of(op).updated) fail("comes after the parameters are updated");
}

// --- Norm and clipping ---

void GradientStates::take_squares(const Operation& op) {
  const std::size_t u = u_of(op);
  UnitGradient& unit = units_[u];
  if (plan_.sums_in_a_tree) {
    const auto found = unit.sums.find(0);
    if (found == unit.sums.end() || unit.sums.size() != 1 || !found->second.reduced || found->second.begin != 0 ||
        found->second.end != static_cast<int>(micro_batches_))
      fail(format("lacks a micro-batch in the gradient of {}", name_of_unit(u)));
  } else {
    require_all(u, is_scattered(u) ? unit.shard : unit.whole);
    if (is_16_bit(u)) {
      require_all(u, is_scattered(u) ? unit.kept_shard : unit.kept_whole);
      if (unit.kept_is_reduced != unit.reduced)
        fail("finds that the kept gradient and the fp32 gradient are summed over different ranks");
    }
    if (unit.reduced != is_replicated(u))
      fail(unit.reduced ? "finds a gradient that is summed over ranks with other shards"
                        : "finds a gradient that is not summed over all ranks");
  }
  if (std::exchange(unit.in_norm, true)) fail("counts a gradient twice");
}

void GradientStates::sum_squares(const Operation&) {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (is_trained(u) && !units_[u].in_norm) fail(format("does not include the gradient of {}", name_of_unit(u)));
  if (std::exchange(squares_are_summed_, true)) fail("sums over the ranks twice");
}

void GradientStates::sum_loss(const Operation&) {
  if (std::exchange(loss_is_summed_, true)) fail("sums over the ranks twice");
}

void GradientStates::know_norm(const Operation&) {
  if (!squares_are_summed_ || !loss_is_summed_) fail("comes before loss and squares are summed over all ranks");
  norm_is_known_ = true;
}

void GradientStates::require_norm() const {
  if (!norm_is_known_) fail("comes before the gradient norm");
}

void GradientStates::require_unused(const Operation& op) const {
  if (units_[u_of(op)].used) fail("changes a gradient that the optimizer has read");
}

void GradientStates::once(const Operation& op) {
  if (!unit_of(op).done.insert(op.kind).second) fail("runs twice on a gradient");
}

// --- The optimizer ---

void GradientStates::count(const Operation& op) {
  require_norm();
  unit_of(op).used = true;
  if (op.round > reduced_rounds_) fail(format("comes before round {} is summed over the ranks", op.round - 1));
  if (unit_of(op).counted++ != op.round) fail("computes a round twice, or not in order");
}

void GradientStates::sum_statistics(const Operation& op) {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (is_trained(u) && op.round < rounds_of(u) && units_[u].counted <= op.round)
      fail(format("does not include the statistics of {}", name_of_unit(u)));
  if (reduced_rounds_++ != op.round) fail("sums a round over the ranks twice, or not in order");
}

void GradientStates::advance(const Operation& op, Matrices before, Matrices after, const char* why) {
  if (std::exchange(unit_of(op).matrices, after) != before) fail(why);
}

void GradientStates::make_directions(const Operation& op) {
  require_norm();
  unit_of(op).used = true;
  advance(op, Matrices::none, Matrices::parts, "computes directions twice");
}
void GradientStates::gather_directions(const Operation& op) {
  advance(op, Matrices::parts, Matrices::gathered, "gathers directions that are not computed");
}
void GradientStates::work_on_matrices(const Operation& op) {
  advance(op, is_scattered(u_of(op)) ? Matrices::gathered : Matrices::parts, Matrices::worked,
          "works on matrices that are not whole");
}
void GradientStates::return_directions(const Operation& op) {
  advance(op, Matrices::worked, Matrices::returned, "returns matrices that are not worked on");
}
void GradientStates::sum_directions(const Operation& op) {
  advance(op, is_scattered(u_of(op)) ? Matrices::returned : Matrices::worked, Matrices::summed,
          "sums directions that do not exist");
}

void GradientStates::update(const Operation& op) {
  const std::size_t u = u_of(op);
  require_norm();
  units_[u].used = true;
  if (layout_.units()[u].rule->whole.work && units_[u].matrices != (is_replicated(u) ? Matrices::summed : Matrices::returned))
    fail("comes before its directions have arrived from all ranks");
  if (reduced_rounds_ < rounds_of(u)) fail("comes before its statistics are summed over the ranks");
  if (!is_trained(u)) fail("updates frozen parameters");
  if (std::exchange(units_[u].updated, true)) fail("updates parameters twice");
}

void GradientStates::update_in_16_bits(const Operation& op) {
  update(op);
  keep_master(op);
}

void GradientStates::average(const Operation& op) {
  const UnitGradient& unit = unit_of(op);
  if (!unit.updated) fail("comes before the parameters are updated");
  if (layout_.units()[u_of(op)].types.master != DType::f32 && !unit.master_is_kept)
    fail("comes before the parameters are rounded");
  once(op);
}

/// Every trained unit must have been updated and, if its parameters are kept in 16 bits, rounded. Operations of a kind that
/// calls once() must have run for all trained units.
void GradientStates::check_end() const {
  std::set<const Kind*> done;
  for (const UnitGradient& unit : units_) done.insert(unit.done.begin(), unit.done.end());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!is_trained(u)) continue;
    if (!units_[u].updated) fail(format("is the last operation, but {} is not updated", name_of_unit(u)));
    if (layout_.units()[u].types.master != DType::f32 && !units_[u].master_is_kept)
      fail(format("is the last operation, but the new {} is not kept", name_of_unit(u)));
    const bool is_averaged = layout_.units()[u].is_averaged();
    if (!plan_.averages.empty() && is_averaged != units_[u].done.contains(&kinds::average))
      fail(format("is the last operation, but the average of {} has {}moved", name_of_unit(u), is_averaged ? "not " : ""));
    for (const Kind* kind : done)
      if (is_averaged && !units_[u].done.contains(kind))
        fail(format("is the last operation, but {} has no '{}', unlike other units", name_of_unit(u), kind->name));
  }
}

// --- Helpers ---

std::set<int> GradientStates::stages_of(std::size_t u) const {
  std::set<int> stages;
  for (std::size_t s = 0; s < stage_units_.size(); ++s)
    if (std::binary_search(stage_units_[s].begin(), stage_units_[s].end(), u)) stages.insert(static_cast<int>(s));
  return stages;
}

bool GradientStates::share_memory(std::size_t a, std::size_t b) const {
  const Location &x = plan_.whole_gradients[a], &y = plan_.whole_gradients[b];
  const auto bytes = [&](std::size_t u) { return layout_.units()[u].padded_numel * sizeof(float); };
  return x.buffer == y.buffer && x.offset < y.offset + bytes(b) && y.offset < x.offset + bytes(a);
}

int GradientStates::sum_at(std::size_t u, const Location& place) const {
  if (place == plan_.at_work(plan_.gradients[u])) return 0;
  const std::vector<Location>& others = plan_.waiting_sums[u];
  for (std::size_t s = 0; s < others.size(); ++s)
    if (place == plan_.at_work(others[s])) return static_cast<int>(s) + 1;
  return -1;
}

void GradientStates::require_whole_micro_batches(const std::set<Contribution>& have, std::size_t stages) const {
  std::map<int, std::size_t> counts;
  for (const auto& [m, stage] : have) ++counts[m];
  for (const auto& [m, n] : counts)
    if (n != stages) fail(format("comes before the gradient holds all of micro-batch {}", m));
}

void GradientStates::require_all(std::size_t u, const std::set<Contribution>& have) const {
  for (std::size_t m = 0; m < micro_batches_; ++m)
    for (const int stage : stages_of(u))
      if (!have.contains({static_cast<int>(m), stage}))
        fail(format("lacks micro-batch {} of stage {} in the gradient of {}", m, stage, name_of_unit(u)));
}

}  // namespace fsdp
