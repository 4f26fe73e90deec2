#include "fsdp/executor.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "fsdp/owners.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

using kernels::Write;

Executor::Executor(Transformer& model, const Layout& layout, const Plan& plan, BatchShape shape,
                   const OptimizerOptions& optimizer, Device& device, Buffer arena, Buffer slots, Mesh& mesh,
                   ExecutorOptions options)
    : model_(model),
      layout_(layout),
      plan_(plan),
      shape_(shape),
      optimizer_(optimizer),
      mesh_(mesh),
      options_(std::move(options)),
      arena_(std::move(arena)),
      slots_(std::move(slots)),
      memory_(plan.buffers.size(), nullptr),
      weights_(model.parameters().size(), nullptr),
      gradients_(model.parameters().size(), nullptr) {
  for (auto& s : streams_) s = device.make_stream();
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b)
    if (!plan_.buffers[b].transient) bind(static_cast<BufferId>(b));
  const std::vector<ParameterSettings> settings = settings_of(optimizer_, model_.parameters());
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      weights_[unit.parameters[i]] =
          at(plan_.whole_parameters[u], unit.types.parameter) + unit.offsets[i] * size_of(unit.types.parameter);
      if (!plan_.gradients.empty() && unit.trainable)
        gradients_[unit.parameters[i]] = at(plan_.whole_gradients[u]) + unit.offsets[i];
    }
    parts_.push_back(parts_of_unit(layout_, u, mesh_.shard->rank(), settings));
  }
  owners_ = matrix_owners(layout_, mesh_.world->size(), plan_.directions_at_once);
  model_.fill_tables({at(plan_.tables), model_.table_numel(shape_.T)}, shape_.T, options_.table_type);
  if (options_.comm_thread) comm_thread_ = std::make_unique<Worker>("fsdp-comm");
}

void Executor::bind(BufferId id) {
  const PlanBuffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
  memory_[static_cast<std::size_t>(id)] = (is_slot(buffer.role) ? slots_ : arena_).acquire(buffer.offset, buffer.bytes);
}

/// Of parameters that are whole at rest, this rank changes its part.
std::byte* Executor::owned_parameters(std::size_t unit) const {
  const bool part = plan_.whole_at_rest(unit) && layout_.units()[unit].shards > 1;
  const std::size_t offset = part ? static_cast<std::size_t>(mesh_.shard->rank()) * layout_.shard_numel(unit) : 0;
  return at({plan_.parameters[unit], offset}, layout_.units()[unit].types.parameter);
}

float* Executor::owned_master(std::size_t unit) const {
  if (plan_.master[unit] != plan_.parameters[unit]) return at(plan_.master[unit]);
  return reinterpret_cast<float*>(owned_parameters(unit));
}

void Executor::round_parameters(std::size_t unit) {
  const std::size_t numel = layout_.shard_numel(unit);
  with_element(layout_.units()[unit].types.parameter, [&]<class E>() {
    if constexpr (!std::is_same_v<E, float>)
      kernels::convert(stream(StreamId::compute), reinterpret_cast<E*>(owned_parameters(unit)), owned_master(unit), numel);
  });
}

std::vector<std::span<float>> Executor::parameters() {
  std::vector<std::span<float>> all;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) all.emplace_back(owned_master(u), layout_.shard_numel(u));
  return all;
}

std::vector<std::span<float>> Executor::owned(const std::vector<BufferId>& buffers) const {
  std::vector<std::span<float>> all;
  for (std::size_t u = 0; u < buffers.size(); ++u)
    all.push_back(buffers[u] < 0 ? std::span<float>() : std::span<float>(at(buffers[u]), layout_.shard_numel(u)));
  return all;
}

std::vector<std::span<float>> Executor::gradients() { return owned(plan_.gradients); }

std::vector<ShardState> Executor::optimizer_states() {
  std::vector<ShardState> all;
  for (std::size_t u = 0; u < plan_.optimizer_state.size(); ++u)
    for (std::size_t k = 0; k < plan_.optimizer_state[u].size(); ++k) {
      const StateInfo& info = info_of(layout_.units()[u].rule).states[k];
      auto state = std::find_if(all.begin(), all.end(), [&](const ShardState& one) { return one.name == info.name; });
      if (state == all.end())
        state = all.insert(all.end(), {std::string(info.name), std::vector<std::span<std::byte>>(layout_.units().size()),
                                       info.extent, info.extent == Extent::element ? optimizer_.state_type : DType::f32});
      state->units[u] = {memory_[static_cast<std::size_t>(plan_.optimizer_state[u][k])],
                         layout_.state_numel(u, info.extent) * size_of(state->type)};
    }
  return all;
}

void Executor::initialize_parameters(std::uint64_t seed, const std::vector<bool>& which) {
  Stream& s = stream(StreamId::compute);
  for (std::size_t u = 0; u < layout_.units().size(); ++u)
    for (const Slice& slice : layout_.slices(u, mesh_.shard->rank())) {
      if (!which.empty() && !which[slice.parameter]) continue;
      const Init& init = model_.parameters()[slice.parameter].init;
      float* out = owned_master(u) + slice.shard_offset;
      if (init.kind == Init::Kind::constant)
        kernels::fill_constant(s, out, slice.range.size(), init.value);
      else
        kernels::fill_normal(s, out, slice.range.size(), slice.range.begin, static_cast<std::uint32_t>(seed),
                             static_cast<std::uint32_t>(slice.parameter), 0.0f, init.value);
    }
}

void Executor::publish_parameters() { run({plan_.publish, nullptr, {}, {}}); }

UpdateResult Executor::run_update(const BatchReader& read, const UpdateScalars& scalars) {
  run({plan_.update, read, scalars, std::exchange(record_, {})});
  return {sums().loss / scalars.tokens, std::sqrt(sums().squares.value()) / scalars.loss_scale, sums().squares.non_finite};
}

std::optional<NonFinite> Executor::find_non_finite(const BatchReader& read, const UpdateScalars& scalars) {
  non_finite_.reset();
  inspecting_ = true;
  run({plan_.update, read, scalars, {}});
  inspecting_ = false;
  return non_finite_;
}

/// Before a reduction: this rank's whole gradient of a unit.
void Executor::inspect(const Operation& op) {
  if (!inspecting_ || non_finite_) return;
  const auto u = static_cast<std::size_t>(op.unit);
  const Unit& unit = layout_.units()[u];
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const float* gradient = at(plan_.whole_gradients[u]) + unit.offsets[i];
    const std::size_t n = numel(model_.parameters()[unit.parameters[i]].shape);
    const bool finite = with_element(op.travel, [&]<class E>() {
      return std::all_of(gradient, gradient + n, [](float g) { return std::isfinite(static_cast<float>(E(g))); });
    });
    if (finite) continue;
    non_finite_ = {static_cast<std::size_t>(&op - plan_.update.data()), u, unit.parameters[i]};
    return;
  }
}

/// After a forward operation: the residual stream that it has written.
void Executor::inspect_activations(const Operation& op, BufferId id, DType type) {
  if (!inspecting_ || non_finite_) return;
  const std::size_t n = shape_.rows() * model_.config().width;
  const bool finite = with_element(type, [&]<class E>() {
    const auto* const x = reinterpret_cast<const E*>(at(id));
    return std::all_of(x, x + n, [](E value) { return std::isfinite(static_cast<float>(value)); });
  });
  if (!finite) non_finite_ = {static_cast<std::size_t>(&op - plan_.update.data())};
}

double Executor::evaluate(const BatchReader& read) {
  logits_out_ = nullptr;
  run({plan_.evaluation, read, {}, {}});
  return sums().loss;
}

void Executor::logits(const BatchReader& read, std::size_t row, float* out) {
  logits_row_ = row;
  logits_out_ = out;
  run({plan_.evaluation, read, {}, {}});
}

void Executor::record(std::span<OperationTime> times) {
  expect(times.empty() || times.size() == plan_.update.size(), "a time for each operation of the update");
  record_ = times;
}

/// Every list begins and ends with all streams idle, which plans rely on.
void Executor::run(const Pass& pass) {
  for (const auto& s : streams_) s->synchronize();
  if (!comm_thread_) {
    times_ += run_streams(pass, [](StreamId) { return true; });
    return;
  }
  progress_.begin();
  comm_thread_->start([this, &pass] { run_communication(pass); });
  std::exception_ptr error;
  try {
    times_ += run_streams(pass, [](StreamId s) { return s == StreamId::compute; });
  } catch (const StreamFailed&) {  // finish() says why
  } catch (...) {
    error = std::current_exception();
    progress_.fail();
    for (const GroupAxis axis : {GroupAxis::shard, GroupAxis::replicate, GroupAxis::world}) mesh_.along(axis).abort();
  }
  try {
    comm_thread_->finish();
  } catch (...) {
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
  times_.collectives += communication_times_.collectives;
}

void Executor::run_communication(const Pass& pass) {
  kernels::set_threads(1);
  try {
    communication_times_ = run_streams(pass, [](StreamId s) { return s != StreamId::compute; });
  } catch (const StreamFailed&) {  // the other thread knows why
  } catch (...) {
    progress_.fail();
    throw;
  }
}

/// Returns the seconds that it took.
double Executor::wait_for(const Pass& pass, const Operation& op) {
  const Timer waited;
  for (const int w : op.waits) progress_.wait(pass.operations[static_cast<std::size_t>(w)].stream, w);
  return op.waits.empty() ? 0 : waited.seconds();
}

/// The operations of those streams that are `mine`, in the order of the list.
template <class Mine>
WorkTimes Executor::run_streams(const Pass& pass, const Mine& mine) {
  WorkTimes times;
  for (std::size_t i = 0; i < pass.operations.size(); ++i) {
    const Operation& op = pass.operations[i];
    if (!mine(op.stream)) continue;
    if (comm_thread_) times.exposed += wait_for(pass, op);
    if (options_.before_operation) options_.before_operation(op);
    for (const BufferId id : op.acquires) bind(id);
    Stream& s = stream(op.stream);
    s.times = {};
    const std::int64_t begin_ns = now_ns();
    run_operation(op, pass.read, pass.scalars);
    const std::int64_t end_ns = now_ns();
    if (!pass.times.empty()) pass.times[i] = {begin_ns, end_ns};
    const double seconds = 1e-9 * static_cast<double>(end_ns - begin_ns);
    const bool updates = op.kind == OperationKind::add_squares || op.kind == OperationKind::statistics ||
                         op.kind == OperationKind::directions || op.kind == OperationKind::whole_matrices ||
                         op.kind == OperationKind::optimizer;
    if (is_collective(op.kind)) {
      times.exposed += seconds;
      times.collectives += seconds;
    } else if (updates) {
      times.optimizer += seconds;
    } else {
      times.gemm += s.times.gemm;
      times.attention += s.times.attention;
      times.other_kernels += seconds - s.times.gemm - s.times.attention;
    }
    for (const BufferId id : op.frees) {
      memory_[static_cast<std::size_t>(id)] = nullptr;
      arena_.give_back(plan_.buffers[static_cast<std::size_t>(id)].bytes);
    }
    if (comm_thread_) progress_.done(op.stream, static_cast<int>(i));
  }
  return times;
}

void Executor::run_operation(const Operation& op, const BatchReader& read, const UpdateScalars& scalars) {
  Stream& s = stream(op.stream);
  const auto u = static_cast<std::size_t>(op.unit), block = static_cast<std::size_t>(op.block);
  const Write write = op.accumulate ? Write::add : Write::overwrite;
  StageContext context{s,
                       weights_,
                       gradients_,
                       at(plan_.scratch),
                       at(plan_.tables),
                       shape_,
                       scalars.dropout,
                       layout_.units().front().types.parameter};
  context.dropout.first_sequence += static_cast<std::uint64_t>(op.micro_batch) * shape_.B;
  float* const cheap = plan_.cheap < 0 ? nullptr : at(plan_.cheap);
  const auto tokens = [&](BufferId id) { return reinterpret_cast<std::int32_t*>(at(id)); };
  const auto in = [&](std::size_t i) { return at(op.reads[i]); };
  const auto out = [&](std::size_t i) { return at(op.writes[i]); };
  switch (op.kind) {
    case OperationKind::read_batch:
      return read(static_cast<std::size_t>(op.micro_batch), tokens(op.writes[0]), tokens(op.writes[1]));
    case OperationKind::all_gather: {
      if (fake_collectives_) return;
      return mesh_.along(op.group).all_gather(s, owned_parameters(u), at(plan_.whole_parameters[u], context.type),
                                              layout_.shard_numel(u), context.type);
    }
    case OperationKind::release:  // what takes the slot next waits for it
      return;
    case OperationKind::embedding_forward:
      model_.embedding_forward(context, tokens(op.reads[0]), out(0));
      return inspect_activations(op, op.writes[0], context.type);
    case OperationKind::block_forward:
      model_.block_forward(context, block, in(0), out(0), out(1), cheap);
      return inspect_activations(op, op.writes[0], context.type);
    case OperationKind::recompute:
      return model_.block_forward(context, block, in(0), op.writes.size() > 2 ? out(2) : nullptr, out(0));
    case OperationKind::refill:
      return model_.block_refill(context, block, in(0), in(1), cheap);
    case OperationKind::head:
      if (op.micro_batch == 0) sums() = {};
      sums().loss += model_.head_forward_backward(context, in(0), tokens(op.reads[1]),
                                                  static_cast<float>(scalars.loss_scale / scalars.tokens), out(0), write);
      return;
    case OperationKind::head_loss:
      if (logits_out_) return model_.head_logits(context, in(0), logits_row_, logits_out_);
      sums().loss = model_.head_loss(context, in(0), tokens(op.reads[1]));
      return;
    case OperationKind::block_backward:
      return model_.block_backward(context, block, in(0), in(1), in(2), write, cheap);
    case OperationKind::embedding_backward:
      return model_.embedding_backward(context, tokens(op.reads[0]), in(1), write);
    case OperationKind::clear:
      return kernels::fill_zero(s, at(plan_.whole_gradients[u]), layout_.units()[u].padded_numel);
    case OperationKind::reduce_scatter: {
      inspect(op);
      if (fake_collectives_) return;
      float* const whole = at(plan_.whole_gradients[u]);
      // Between parameters the slot holds what another unit left there.
      for (const Range gap : layout_.units()[u].gaps) kernels::fill_zero(s, whole + gap.begin, gap.size());
      return mesh_.along(op.group).reduce_scatter(s, whole, at(plan_.gradients[u]), layout_.shard_numel(u),
                                                  op.accumulate ? Into::add : Into::overwrite, op.travel);
    }
    case OperationKind::all_reduce:
      if (plan_.whole_gradients[u].buffer == plan_.gradients[u]) inspect(op);
      if (fake_collectives_) return;
      return mesh_.along(op.group).all_reduce(s, at(plan_.gradients[u]), layout_.shard_numel(u), op.travel);
    case OperationKind::add_squares:
      if (layout_.units()[u].sharded || mesh_.shard->rank() == 0)  // what all ranks hold counts once
        kernels::add_squares(s, sums().squares, at(plan_.gradients[u]), layout_.shard_numel(u));
      return;
    case OperationKind::gradient_norm:
      return reduce_norm(scalars);
    case OperationKind::statistics:
      return count_statistics(s, op, scalars);
    case OperationKind::reduce_statistics:
      return mesh_.shard->all_reduce(s, words_of(op.round), layout_.statistics_words(op.round));
    case OperationKind::directions:
      if (!sums().finite()) return;
      return info_of(layout_.units()[u].rule).whole.prepare(s, memory_of_unit(u), optimizer_, step_of(scalars));
    case OperationKind::gather_directions:
      if (fake_collectives_) return;
      return mesh_.along(op.group).all_gather(s, at(plan_.directions[u]), at(plan_.whole_directions[u]), layout_.shard_numel(u),
                                              DType::f32);
    case OperationKind::whole_matrices:
      if (!sums().finite()) return;
      return work_on_matrices(s, u);
    case OperationKind::scatter_directions:
      if (fake_collectives_) return;
      return mesh_.along(op.group).reduce_scatter(s, at(plan_.whole_directions[u]), at(plan_.directions[u]),
                                                  layout_.shard_numel(u), Into::overwrite, DType::f32);
    case OperationKind::sum_directions:
      if (fake_collectives_) return;
      return mesh_.along(op.group).all_reduce(s, at(plan_.directions[u]), layout_.shard_numel(u), DType::f32);
    case OperationKind::optimizer:
      if (!sums().finite()) return;  // the same decision on every rank
      return info_of(layout_.units()[u].rule).update(s, memory_of_unit(u), optimizer_, step_of(scalars));
    case OperationKind::round:
      return round_parameters(u);
  }
}

/// What the optimizer works on.
UnitMemory Executor::memory_of_unit(std::size_t unit) {
  UnitMemory memory{.tensors = parts_[unit].tensors,
                    .slices = parts_[unit].slices,
                    .parameters = owned_master(unit),
                    .gradients = at(plan_.gradients[unit])};
  if (const DType type = layout_.units()[unit].types.parameter; type != DType::f32)
    memory.copy = reinterpret_cast<std::uint16_t*>(owned_parameters(unit)), memory.copy_type = type;
  for (std::size_t k = 0; k < plan_.optimizer_state[unit].size(); ++k)
    memory.states[k] = memory_[static_cast<std::size_t>(plan_.optimizer_state[unit][k])];
  for (std::size_t round = 0; round < plan_.statistics.size(); ++round)
    memory.statistics[round] = words_of(static_cast<int>(round)) + layout_.statistics(unit, static_cast<int>(round)).begin;
  if (plan_.directions[unit] >= 0) memory.directions = at(plan_.directions[unit]);
  return memory;
}

std::int64_t* Executor::words_of(int round) {
  return reinterpret_cast<std::int64_t*>(at(plan_.statistics[static_cast<std::size_t>(round)]));
}

OptimizerStep Executor::step_of(const UpdateScalars& scalars) {
  return {scalars.update - scalars.state_began, scalars.learning_rate, sums().gradient_scale,
          std::sqrt(sums().squares.value())};
}

/// Works on the matrices that this rank owns. All else becomes zero, so that a sum over the ranks has each matrix once.
void Executor::work_on_matrices(Stream& stream, std::size_t u) {
  const Unit& unit = layout_.units()[u];
  float* const whole = at(plan_.whole_directions[u]);
  for (const Range gap : unit.gaps) kernels::fill_zero(stream, whole + gap.begin, gap.size());
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const UnitTensor& tensor = parts_[u].tensors[i];
    float* const matrix = whole + unit.offsets[i];
    if (owners_[u][i] == mesh_.world->rank())
      info_of(unit.rule).whole.work(stream, matrix, tensor.rows, tensor.columns, at(plan_.matrix_scratch));
    else
      kernels::fill_zero(stream, matrix, tensor.numel);
  }
}

/// This rank's part of a unit's sums. What all ranks have whole counts once.
void Executor::count_statistics(Stream& stream, const Operation& op, const UpdateScalars& scalars) {
  const auto u = static_cast<std::size_t>(op.unit);
  const Range mine = layout_.statistics(u, op.round);
  const auto clear = [&] { std::fill_n(words_of(op.round) + mine.begin, mine.size(), 0); };
  clear();
  if (!sums().finite()) return;
  info_of(layout_.units()[u].rule).statistics.count(stream, memory_of_unit(u), optimizer_, step_of(scalars), op.round);
  if (!layout_.units()[u].sharded && mesh_.shard->rank() != 0) clear();
}

/// Loss, norm and clipping factor of the update, the same bits on every rank: integers and one canonical sum.
void Executor::reduce_norm(const UpdateScalars& scalars) {
  Stream& s = stream(StreamId::reduce);
  kernels::ExactSum& squares = sums().squares;
  squares.normalize();
  mesh_.shard->all_reduce(s, reinterpret_cast<std::int64_t*>(&squares), kernels::ExactSum::words);
  mesh_.world->all_reduce(s, &sums().loss, 1);
  // As torch.nn.utils.clip_grad_norm_.
  const double norm = std::sqrt(squares.value()) / scalars.loss_scale;
  const double clipping = scalars.clip_norm > 0 ? std::min(1.0, scalars.clip_norm / (norm + 1e-6)) : 1.0;
  sums().gradient_scale = clipping / scalars.loss_scale;
}

void Executor::reset_times() { times_ = {}; }

}  // namespace fsdp
