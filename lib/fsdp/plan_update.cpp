#include "fsdp/plan_update.hpp"

#include <algorithm>
#include <utility>

#include "base/format.hpp"

namespace fsdp {

using enum OperationKind;

BufferId add_buffer(Plan& plan, std::string name, BufferRole role, std::size_t bytes, bool transient) {
  constexpr std::size_t alignment = 64;  // bytes
  plan.buffers.push_back({std::move(name), role, round_up(bytes, alignment), transient});
  return static_cast<BufferId>(plan.buffers.size()) - 1;
}

Operation gather_operation(const UnitPlacement& units, const Plan& plan, int u) {
  return {.kind = all_gather,
          .stream = StreamId::gather,
          .unit = u,
          .count = units.shard_numel(u),
          .type = units.unit(u).types.parameter,
          .reads = {at(plan.parameters, u)},
          .writes = {at(plan.whole_parameters, u)}};
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
  matrix_scratch_ = add_buffer(plan_, "matrices", BufferRole::scratch, scratch * size_of(DType::f32));
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
  emit_sum(Quantity::squares, GroupAxis::shard, {plan_.sums, offsetof(UpdateSums, squares)}, kernels::ExactSum::words,
           DType::i64);
  emit_sum(Quantity::loss, GroupAxis::world, {plan_.sums, offsetof(UpdateSums, loss)}, LossSum::words, DType::i64);
  emit({.kind = gradient_norm, .stream = StreamId::reduce, .reads = {plan_.sums}, .writes = {plan_.sums}});
}

void UpdateBuilder::append_optimizer(int micro_batch) {
  micro_batch_ = micro_batch;
  for (int u = 0; u < units_.count(); ++u)
    if (clips_values_ && units_.trained(u) && !units_.has_narrow_gradient(u)) emit_clip(u);
  for (std::size_t round = 0; round < plan_.statistics.size(); ++round) emit_statistics(static_cast<int>(round));
  std::vector<int> together;  // units that work on matrices at the same time
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
      plan_.publish.push_back({.kind = round,
                               .stream = StreamId::compute,
                               .unit = u,
                               .count = units_.shard_numel(u),
                               .type = units_.unit(u).types.parameter,
                               .reads = {at(plan_.master, u)},
                               .writes = {at(plan_.parameters, u)}});
    if (is_published(u)) plan_.publish.push_back(gather_operation(units_, plan_, u));
  }
}

void UpdateBuilder::emit(Operation op) {
  op.micro_batch = micro_batch_;
  plan_.update.push_back(std::move(op));
}

/// A sum over the ranks that no unit's gradient is.
void UpdateBuilder::emit_sum(Quantity quantity, GroupAxis group, Location where, std::size_t count, DType type, int round) {
  emit({.kind = all_reduce,
        .stream = StreamId::reduce,
        .round = round,
        .quantity = quantity,
        .group = group,
        .count = count,
        .type = type,
        .reads = {where},
        .writes = {where}});
}

void UpdateBuilder::emit_clip(int u) {
  emit({.kind = clip_values,
        .stream = StreamId::compute,
        .unit = u,
        .count = units_.shard_numel(u),
        .reads = {plan_.sums, at(plan_.wide_gradients, u)},
        .writes = {at(plan_.wide_gradients, u)}});
}

void UpdateBuilder::emit_widening(int u, Quantity quantity, Location from, Location to) {
  emit({.kind = widen,
        .stream = StreamId::compute,
        .unit = u,
        .quantity = quantity,
        .count = units_.shard_numel(u),
        .type = quantity == Quantity::gradients ? units_.unit(u).types.gradient : units_.unit(u).types.master,
        .reads = {from},
        .writes = {to}});
}

void UpdateBuilder::widen_gradient(int u) {
  if (!units_.has_narrow_gradient(u)) return;
  emit_widening(u, Quantity::gradients, at(plan_.gradients, u), at(plan_.wide_gradients, u));
  if (clips_values_) emit_clip(u);
}

void UpdateBuilder::widen_master(int u) {
  if (units_.has_narrow_master(u)) emit_widening(u, Quantity::parameters, at(plan_.master, u), at(plan_.wide_master, u));
}

/// Sums over whole tensors: each unit's on this rank, and all of them over the ranks at once.
void UpdateBuilder::emit_statistics(int round) {
  const Layout& layout = units_.layout();
  for (int u = 0; u < units_.count(); ++u) {
    if (!units_.trained(u) || round >= units_.rounds(u)) continue;
    widen_gradient(u);
    widen_master(u);
    std::vector<Location> read = {plan_.sums, at(plan_.wide_gradients, u), at(plan_.wide_master, u)};
    for (int before = 0; before < round; ++before) read.push_back(words(u, before));
    emit({.kind = statistics,
          .stream = StreamId::compute,
          .unit = u,
          .round = round,
          .count = layout.statistics(static_cast<std::size_t>(u), round).size(),
          .reads = std::move(read),
          .writes = with_states(u, {words(u, round)})});
  }
  emit_sum(Quantity::statistics, GroupAxis::shard, at(plan_.statistics, round), layout.statistics_words(round), DType::i64,
           round);
}

void UpdateBuilder::emit_optimizer(int u) {
  const bool follows_directions = units_.works_on_matrices(u);
  if (!follows_directions) widen_gradient(u);
  widen_master(u);
  std::vector<Location> read = {plan_.sums, follows_directions ? at(directions_, u) : at(plan_.wide_gradients, u)};
  for (int round = 0; round < units_.rounds(u); ++round) read.push_back(words(u, round));
  std::vector<Location> written = {at(plan_.wide_master, u)};
  if (units_.rounded(u)) written.push_back(at(plan_.parameters, u));
  emit({.kind = optimizer,
        .stream = StreamId::compute,
        .unit = u,
        .reads = std::move(read),
        .writes = with_states(u, std::move(written))});
  if (units_.has_narrow_master(u))
    emit({.kind = round_at_random,
          .stream = StreamId::compute,
          .unit = u,
          .quantity = Quantity::parameters,
          .count = units_.shard_numel(u),
          .type = units_.unit(u).types.master,
          .reads = {at(plan_.wide_master, u)},
          .writes = {at(plan_.master, u), at(plan_.wide_master, u)}});
  if (is_published(u)) emit(gather_operation(units_, plan_, u));
}

/// The owners of matrices are dealt out over all ranks, replicas too: zeros elsewhere, and the sum that gradients take.
void UpdateBuilder::emit_matrices(const std::vector<int>& together) {
  const auto part = [&](int u) { return at(directions_, u); };
  const auto whole = [&](int u) { return at(whole_directions_, u); };
  const auto move = [&](OperationKind kind, StreamId stream, GroupAxis group, int u, Location from, Location to) {
    emit({.kind = kind,
          .stream = stream,
          .unit = u,
          .quantity = Quantity::directions,
          .group = group,
          .count = units_.shard_numel(u),
          .reads = {from},
          .writes = {to}});
  };
  for (const int u : together) {
    widen_gradient(u);
    emit({.kind = directions,
          .stream = StreamId::compute,
          .unit = u,
          .reads = {plan_.sums, at(plan_.wide_gradients, u)},
          .writes = with_states(u, {part(u)})});
    if (units_.scattered(u)) move(all_gather, StreamId::gather, GroupAxis::shard, u, part(u), whole(u));
  }
  for (const int u : together) {
    emit({.kind = whole_matrices,
          .stream = StreamId::compute,
          .unit = u,
          .reads = {plan_.sums, whole(u)},
          .writes = {whole(u), matrix_scratch_}});
    if (units_.scattered(u)) move(reduce_scatter, StreamId::reduce, GroupAxis::shard, u, whole(u), part(u));
    if (units_.is_replicated(u)) move(all_reduce, StreamId::reduce, units_.replicas(u), u, part(u), part(u));
  }
  for (const int u : together) emit_optimizer(u);
}

bool UpdateBuilder::shares_memory(int u, const std::vector<int>& others) const {
  const auto buffer_of = [&](const std::vector<Location>& places, int unit) { return plan_.at_work(at(places, unit)).buffer; };
  return std::any_of(others.begin(), others.end(), [&](int other) {
    return buffer_of(whole_directions_, u) == buffer_of(whole_directions_, other) ||
           buffer_of(directions_, u) == buffer_of(directions_, other);
  });
}

/// Where this rank counts a round of a unit's sums over whole tensors.
Location UpdateBuilder::words(int u, int round) const {
  const Range range = units_.layout().statistics(static_cast<std::size_t>(u), round);
  return {at(plan_.statistics, round), range.begin * sizeof(std::int64_t)};
}

std::vector<Location> UpdateBuilder::with_states(int u, std::vector<Location> places) const {
  const std::vector<BufferId>& states = at(plan_.optimizer_state, u);
  places.insert(places.end(), states.begin(), states.end());
  return places;
}

}  // namespace fsdp
