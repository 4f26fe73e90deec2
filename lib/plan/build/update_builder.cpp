#include "plan/build/update_builder.hpp"

#include <algorithm>
#include <utility>

#include "base/format.hpp"
#include "plan/kind.hpp"

namespace fsdp {

using enum OperandName;

BufferId add_buffer(Plan& plan, std::string name, BufferRole role, std::size_t bytes, bool transient) {
  constexpr std::size_t alignment = 64;  // bytes
  plan.buffers.push_back({std::move(name), role, round_up(bytes, alignment), transient});
  if (is_slot(role)) plan.buffers.back().space = &spaces::slots;
  return static_cast<BufferId>(plan.buffers.size()) - 1;
}

Operation gather_operation(const UnitPlacement& units, const Plan& plan, int u) {
  return {.kind = &kinds::all_gather_parameters,
          .stream = StreamId::gather,
          .unit = u,
          .count = units.shard_numel(u),
          .type = units.unit(u).types.parameter,
          .operands = {{part, at(plan.parameters, u)}, {weights, at(plan.whole_parameters, u)}}};
}

void UpdateBuilder::add_direction_buffers() {
  directions_.assign(static_cast<std::size_t>(units_.count()), {});
  whole_directions_ = directions_;
  std::size_t largest = 0, scratch = 0, turn = 0;
  for (int u = 0; u < units_.count(); ++u) {
    if (!units_.works_on_matrices(u)) continue;
    largest = std::max(largest, units_.shard_bytes(u));
    ++turn;
    for (const std::size_t p : units_.unit(u).parameters) {
      const Shape& shape = units_.layout().shape(p);
      scratch = std::max(scratch, units_.unit(u).rule->whole.scratch(numel(shape) / shape.back(), shape.back()));
    }
  }
  if (largest == 0) return;
  std::vector<BufferId> buffers;
  for (std::size_t i = 0; i < std::min(turn, plan_.directions_at_once); ++i)
    buffers.push_back(add_buffer(plan_, format("directions{}", i), BufferRole::scratch, largest));
  plan_.matrix_scratch = add_buffer(plan_, "matrices", BufferRole::scratch, scratch * size_of(DType::f32));
  turn = 0;
  for (int u = 0; u < units_.count(); ++u) {
    if (!units_.works_on_matrices(u)) continue;
    at(directions_, u) = buffers[turn++ % buffers.size()];
    at(whole_directions_, u) = units_.scattered(u) ? at(plan_.whole_gradients, u) : at(directions_, u);
  }
}

void UpdateBuilder::add_statistics_buffers() {
  for (int round = 0; units_.layout().statistics_words(round) > 0; ++round)
    plan_.statistics.push_back(add_buffer(plan_, format("statistics{}", round), BufferRole::scratch,
                                          units_.layout().statistics_words(round) * sizeof(std::int64_t)));
}

void UpdateBuilder::append_norm(int micro_batch) {
  micro_batch_ = micro_batch;
  emit_sum(kinds::all_reduce_squares, GroupAxis::shard, {squares, {plan_.sums, offsetof(UpdateSums, squares)}},
           kernels::ExactSum::words);
  emit_sum(kinds::all_reduce_loss, GroupAxis::world, {loss, {plan_.sums, offsetof(UpdateSums, loss)}}, LossSum::words);
  plan_.update.back().operands.push_back({own_loss, {plan_.report, sizeof(UpdateSums)}});
  emit({.kind = &kinds::gradient_norm, .stream = StreamId::reduce, .operands = {{sums, plan_.sums}, {report, plan_.report}}});
}

void UpdateBuilder::append_optimizer(int micro_batch) {
  micro_batch_ = micro_batch;
  for (int u = 0; u < units_.count(); ++u)
    if (clips_values_ && units_.trained(u) && !units_.has_16_bit_gradient(u) && !units_.is_of_state(u)) emit_clip(u);
  for (std::size_t round = 0; round < plan_.statistics.size(); ++round) emit_statistics(static_cast<int>(round));
  std::vector<int> together;  // units whose directions are computed together
  for (int u = 0; u < units_.count(); ++u) {
    if (!units_.trained(u)) continue;
    if (!units_.works_on_matrices(u)) {
      emit_optimizer(u);
      continue;
    }
    if (together.size() == plan_.directions_at_once || shares_memory(u, together)) emit_matrices(std::exchange(together, {}));
    together.push_back(u);
  }
  emit_matrices(together);
}

void UpdateBuilder::append_publish() {
  for (int u = 0; u < units_.count(); ++u) {
    if (units_.rounded(u))
      plan_.publish.push_back({.kind = &kinds::round,
                               .stream = StreamId::compute,
                               .unit = u,
                               .count = units_.shard_numel(u),
                               .type = units_.unit(u).types.parameter,
                               .operands = {{master, at(plan_.master, u)}, {part, at(plan_.parameters, u)}}});
    if (is_published(u)) plan_.publish.push_back(gather_operation(units_, plan_, u));
  }
}

void UpdateBuilder::emit(Operation op) {
  op.micro_batch = micro_batch_;
  plan_.update.push_back(std::move(op));
}

/// Appends an operation on this rank's part of a unit.
void UpdateBuilder::emit(const Kind& kind, StreamId stream, int u, std::vector<Operand> operands, DType type, GroupAxis group) {
  emit({.kind = &kind,
        .stream = stream,
        .unit = u,
        .group = group,
        .count = units_.shard_numel(u),
        .type = type,
        .operands = std::move(operands)});
}

/// Appends an all-reduce of integer sums: squares, losses or statistics.
void UpdateBuilder::emit_sum(const Kind& kind, GroupAxis group, Operand what, std::size_t count, int round) {
  emit({.kind = &kind,
        .stream = StreamId::reduce,
        .round = round,
        .group = group,
        .count = count,
        .type = DType::i64,
        .operands = {what}});
}

void UpdateBuilder::emit_clip(int u) {
  emit(kinds::clip_values, StreamId::compute, u, {{sums, plan_.sums}, {gradient, at(plan_.wide_gradients, u)}});
}

void UpdateBuilder::upcast_gradient(int u) {
  if (!units_.has_16_bit_gradient(u)) return;
  emit(kinds::upcast_gradient, StreamId::compute, u,
       {{kept_gradient, at(plan_.gradients, u)}, {gradient, at(plan_.wide_gradients, u)}}, units_.unit(u).types.gradient);
  if (clips_values_) emit_clip(u);
}

void UpdateBuilder::upcast_master(int u) {
  if (!units_.has_16_bit_master(u)) return;
  emit(kinds::upcast_master, StreamId::compute, u, {{kept_master, at(plan_.master, u)}, {master, at(plan_.wide_master, u)}},
       units_.unit(u).types.master);
}

/// Appends a round of sums over whole tensors: first the sums of each unit on this rank, then one all-reduce.
void UpdateBuilder::emit_statistics(int round) {
  const Layout& layout = units_.layout();
  for (int u = 0; u < units_.count(); ++u) {
    if (!units_.trained(u) || round >= units_.rounds(u)) continue;
    upcast_gradient(u);
    upcast_master(u);
    std::vector<Operand> operands = {
        {sums, plan_.sums}, {gradient, at(plan_.wide_gradients, u)}, {master, at(plan_.wide_master, u)}};
    for (int before = 0; before < round; ++before) operands.push_back({words_before, words(u, before)});
    operands.push_back({words_out, words(u, round)});
    append_states(u, operands);
    emit({.kind = &kinds::statistics,
          .stream = StreamId::compute,
          .unit = u,
          .round = round,
          .count = layout.statistics(static_cast<std::size_t>(u), round).size(),
          .operands = std::move(operands)});
  }
  emit_sum(kinds::all_reduce_statistics, GroupAxis::shard, {all_words, at(plan_.statistics, round)},
           layout.statistics_words(round), round);
}

void UpdateBuilder::emit_optimizer(int u) {
  emit_update(u);
  if (is_published(u)) emit(gather_operation(units_, plan_, u));
}

/// Appends the update of this rank's part of a unit, with all conversions.
void UpdateBuilder::emit_update(int u) {
  if (units_.updates_in_16_bits(u)) {
    std::vector<Operand> operands = {
        {sums, plan_.sums}, {kept_gradient, at(plan_.gradients, u)}, {kept_master, at(plan_.master, u)}};
    append_states(u, operands);
    return emit(kinds::optimizer_16_bit, StreamId::compute, u, std::move(operands), units_.unit(u).types.master);
  }
  const bool follows_directions = units_.works_on_matrices(u);
  if (!follows_directions) upcast_gradient(u);
  upcast_master(u);
  std::vector<Operand> operands = {
      {sums, plan_.sums},
      follows_directions ? Operand{direction, at(directions_, u)} : Operand{gradient, at(plan_.wide_gradients, u)}};
  for (int round = 0; round < units_.rounds(u); ++round) operands.push_back({OperandName::words, words(u, round)});
  operands.push_back({master, at(plan_.wide_master, u)});
  if (units_.rounded(u)) operands.push_back({part, at(plan_.parameters, u)});
  append_states(u, operands);
  emit({.kind = &kinds::optimizer, .stream = StreamId::compute, .unit = u, .operands = std::move(operands)});
  if (units_.has_16_bit_master(u))
    emit(kinds::round_master, StreamId::compute, u, {{master, at(plan_.wide_master, u)}, {kept_master, at(plan_.master, u)}},
         units_.unit(u).types.master);
  if (!plan_.averages.empty() && units_.is_averaged(u))
    emit(kinds::average, StreamId::compute, u,
         {{sums, plan_.sums}, {master, at(plan_.wide_master, u)}, {average, at(plan_.averages, u)}});
}

/// Each matrix is processed by its owner, one rank of the world. All other ranks set it to zero, so that sums over the ranks,
/// like those of gradients, give each rank its part of the results.
void UpdateBuilder::emit_matrices(const std::vector<int>& together) {
  const auto mine = [&](int u) { return Operand{direction, at(directions_, u)}; };
  const auto all = [&](int u) { return Operand{matrices, at(whole_directions_, u)}; };
  for (const int u : together) {
    upcast_gradient(u);
    std::vector<Operand> operands = {{sums, plan_.sums}, {gradient, at(plan_.wide_gradients, u)}, mine(u)};
    append_states(u, operands);
    emit({.kind = &kinds::directions, .stream = StreamId::compute, .unit = u, .operands = std::move(operands)});
    if (units_.scattered(u)) emit(kinds::all_gather_directions, StreamId::gather, u, {mine(u), all(u)});
  }
  for (const int u : together) {
    emit({.kind = &kinds::whole_matrices,
          .stream = StreamId::compute,
          .unit = u,
          .operands = {{sums, plan_.sums}, all(u), {matrix_scratch, plan_.matrix_scratch}}});
    if (units_.scattered(u)) emit(kinds::reduce_scatter_directions, StreamId::reduce, u, {all(u), mine(u)});
    if (units_.is_replicated(u))
      emit(kinds::all_reduce_directions, StreamId::reduce, u, {mine(u)}, DType::f32, units_.replicas(u));
  }
  for (const int u : together) emit_optimizer(u);
}

bool UpdateBuilder::shares_memory(int u, const std::vector<int>& others) const {
  const auto buffer_of = [&](const std::vector<Location>& places, int unit) { return plan_.at_work(at(places, unit)).buffer; };
  return std::any_of(others.begin(), others.end(), [&](int other) {
    return buffer_of(plan_.wide_gradients, u) ==
               buffer_of(whole_directions_, other) ||  // u's gradient is upcast there after the other's directions are gathered
           buffer_of(whole_directions_, u) == buffer_of(whole_directions_, other) ||
           buffer_of(directions_, u) == buffer_of(directions_, other);
  });
}

/// The place of the words of a round, which are this rank's sums over the unit's whole tensors.
Location UpdateBuilder::words(int u, int round) const {
  const Range range = units_.layout().statistics(static_cast<std::size_t>(u), round);
  return {at(plan_.statistics, round), range.begin * sizeof(std::int64_t)};
}

void UpdateBuilder::append_states(int u, std::vector<Operand>& operands) const {
  for (const BufferId state : at(plan_.optimizer_state, u)) operands.push_back({states, state});
}

}  // namespace fsdp
