#include "fsdp/executor.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "device/memory_view.hpp"
#include "fsdp/owners.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

using kernels::Write;

Executor::Executor(Transformer& model, const Layout& layout, const Plan& plan, BatchShape shape,
                   const OptimizerOptions& optimizer, Device& device, Buffer arena, Buffer slots, const Mesh& mesh,
                   ExecutorOptions options)
    : model_(model),
      layout_(layout),
      plan_(plan),
      shape_(shape),
      optimizer_(optimizer),
      mesh_(&mesh),
      shard_(static_cast<std::size_t>(mesh.shard->rank())),
      options_(std::move(options)),
      arena_(std::move(arena)),
      slots_(std::move(slots)),
      weights_(model.parameters().size(), nullptr),
      gradients_(model.parameters().size(), nullptr),
      events_(std::max({plan.update.size(), plan.evaluation.size(), plan.publish.size()})) {
  for (const PlanBuffer& buffer : plan_.buffers) {
    Arena& where = is_slot(buffer.role) ? slots_ : arena_;
    memory_.push_back(where.at(buffer.offset, buffer.bytes));
    if (!buffer.transient) where.acquire(buffer.bytes);
  }
  const std::vector<ParameterSettings> settings = settings_of(optimizer_, model_.parameters());
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      weights_[unit.parameters[i]] = at<std::byte>(plan_.whole_parameters[u]) + unit.offsets[i] * size_of(unit.types.parameter);
      if (!plan_.gradients.empty() && unit.trainable)
        gradients_[unit.parameters[i]] = at<float>(plan_.whole_gradients[u]) + unit.offsets[i];
    }
    parts_.push_back(parts_of_unit(layout_, u, mesh_->shard->rank(), settings));
  }
  owners_ = matrix_owners(layout_, mesh_->world->size(), plan_.directions_at_once);
  for (const StreamId id : {StreamId::compute, StreamId::gather, StreamId::reduce}) {
    auto& s = streams_[static_cast<std::size_t>(id)] =
        device.make_stream(id == StreamId::compute ? StreamUse::compute : StreamUse::communication);
    if (s->is_asynchronous()) {
      const int threads = id == StreamId::compute ? kernels::threads() : 1;
      on_stream(stream(id), [threads] { kernels::set_threads(threads); });
    }
  }
  on_stream(stream(StreamId::compute), [this] {
    model_.fill_tables({at<float>(plan_.tables), model_.table_numel(shape_.T)}, shape_.T, options_.table_type);
  });
}

ShardState Executor::owned(std::string name, const std::vector<Location>& places) {
  std::vector<MemoryView> units(layout_.units().size());
  for (std::size_t u = 0; u < places.size(); ++u)
    if (places[u].buffer >= 0)
      units[u] = {{at<std::byte>(places[u]), layout_.shard_numel(u) * sizeof(float)}, stream(StreamId::compute)};
  return {std::move(name), std::move(units), Extent::element, DType::f32};
}

ShardState Executor::parameters() { return owned(parameters_state, plan_.master); }
ShardState Executor::gradients() { return owned("gradients", plan_.gradients); }

std::vector<ShardState> Executor::optimizer_states() {
  std::vector<ShardState> all;
  for (std::size_t u = 0; u < plan_.optimizer_state.size(); ++u)
    for (std::size_t k = 0; k < plan_.optimizer_state[u].size(); ++k) {
      const StateInfo& info = layout_.units()[u].rule->states[k];
      auto state = std::find_if(all.begin(), all.end(), [&](const ShardState& one) { return one.name == info.name; });
      if (state == all.end())
        state = all.insert(all.end(), {std::string(info.name), std::vector<MemoryView>(layout_.units().size()), info.extent,
                                       info.extent == Extent::element ? optimizer_.state_type : DType::f32});
      state->units[u] = {
          {at<std::byte>(plan_.optimizer_state[u][k]), layout_.state_numel(u, info.extent) * size_of(state->type)},
          stream(StreamId::compute)};
    }
  return all;
}

void Executor::initialize_parameters(std::uint64_t seed, const std::vector<bool>& which) {
  Stream& s = stream(StreamId::compute);
  on_stream(stream(StreamId::compute), [&] {
    for (std::size_t u = 0; u < layout_.units().size(); ++u)
      for (const Slice& slice : layout_.slices(u, static_cast<int>(shard_))) {
        if (!which.empty() && !which[slice.parameter]) continue;
        const Init& init = model_.parameters()[slice.parameter].init;
        float* out = at<float>(plan_.master[u]) + slice.shard_offset;
        if (init.kind == Init::Kind::constant)
          kernels::fill_constant(s, out, slice.range.size(), init.value);
        else
          kernels::fill_normal(s, out, slice.range.size(), slice.range.begin, static_cast<std::uint32_t>(seed),
                               static_cast<std::uint32_t>(slice.parameter), 0.0f, init.value);
      }
  });
}

void Executor::publish_parameters() { run(plan_.publish, nullptr, {}); }

void Executor::begin_update(const BatchReader& read, const UpdateScalars& scalars) {
  begin(plan_.update, read, scalars, std::exchange(record_, {}));
}
void Executor::forward_backward() { issue({0, plan_.sections.forward_backward}); }
void Executor::gradient_norm() { issue({plan_.sections.forward_backward, plan_.sections.gradient_norm}); }

UpdateResult Executor::update_parameters() {
  issue({plan_.sections.gradient_norm, plan_.update.size()});
  const UpdateScalars scalars = pass_->scalars;
  finish();
  UpdateResult result;
  on_stream(stream(StreamId::reduce), [&] {
    result = {sums().loss / scalars.tokens, std::sqrt(sums().squares.value()) / scalars.loss_scale, sums().squares.non_finite};
  });
  return result;
}

UpdateResult Executor::run_update(const BatchReader& read, const UpdateScalars& scalars) {
  begin_update(read, scalars);
  forward_backward();
  gradient_norm();
  return update_parameters();
}

std::optional<NonFinite> Executor::find_non_finite(const BatchReader& read, const UpdateScalars& scalars) {
  non_finite_ = {};
  run(plan_.update, read, scalars, true);
  std::optional<NonFinite> first;
  for (const std::optional<NonFinite>& found : non_finite_)
    if (found && (!first || found->operation < first->operation)) first = found;
  return first;
}

/// Looks at this rank's whole gradient of a unit, before it is reduced.
void Executor::inspect(const Operation& op) {
  std::optional<NonFinite>& found = non_finite_[static_cast<std::size_t>(op.stream)];
  if (!pass_->inspects || found) return;
  const auto u = static_cast<std::size_t>(op.unit);
  const Unit& unit = layout_.units()[u];
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const float* gradient = gradients_[unit.parameters[i]];
    const std::size_t n = numel(model_.parameters()[unit.parameters[i]].shape);
    const bool finite = with_element(op.travel, [&]<class E>() {
      return std::all_of(gradient, gradient + n, [](float g) { return std::isfinite(static_cast<float>(E(g))); });
    });
    if (finite) continue;
    found = {static_cast<std::size_t>(&op - plan_.update.data()), u, unit.parameters[i]};
    return;
  }
}

/// Looks at the residual stream that a forward operation has written.
void Executor::inspect_activations(const Operation& op, DType type) {
  std::optional<NonFinite>& found = non_finite_[static_cast<std::size_t>(op.stream)];
  if (!pass_->inspects || found) return;
  const std::size_t n = shape_.rows() * model_.config().width;
  const bool finite = with_element(type, [&]<class E>() {
    const E* const x = at<E>(op.writes[0]);
    return std::all_of(x, x + n, [](E value) { return std::isfinite(static_cast<float>(value)); });
  });
  if (!finite) found = {static_cast<std::size_t>(&op - plan_.update.data())};
}

double Executor::evaluate(const BatchReader& read) {
  logits_out_ = nullptr;
  run(plan_.evaluation, read, {});
  double loss = 0;
  on_stream(stream(StreamId::compute), [&] { loss = sums().loss; });
  return loss;
}

void Executor::logits(const BatchReader& read, std::size_t row, float* out) {
  logits_row_ = row;
  logits_out_ = out;
  run(plan_.evaluation, read, {});
}

void Executor::record(std::span<OperationTime> times) {
  expect(times.empty() || times.size() == plan_.update.size(), "a time for each operation of the update");
  record_ = times;
}

/// Every list begins and ends with all streams idle, which plans rely on.
void Executor::begin(const std::vector<Operation>& operations, const BatchReader& read, const UpdateScalars& scalars,
                     std::span<OperationTime> times, bool inspects) {
  expect(!pass_, "one list runs at a time");
  pass_.emplace(Pass{this, operations, read, scalars, times, inspects});
}

namespace {

/// The first error that is no consequence of another one: the cause.
class FirstCause {
 public:
  template <class Work>
  void attempt(Work&& work) {
    try {
      work();
    } catch (const StreamFailed&) {
      keep(1);
    } catch (const GroupAborted&) {
      keep(2);
    } catch (...) {
      keep(3);
    }
  }
  bool found() const { return rank_ > 0; }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
  }

 private:
  void keep(int rank) {
    if (rank_ < rank) cause_ = std::current_exception(), rank_ = rank;
  }
  std::exception_ptr cause_;
  int rank_ = 0;
};

}  // namespace

/// Waits for all streams, and throws what has gone wrong on any of them.
void Executor::finish() {
  FirstCause cause;
  for (const auto& s : streams_) cause.attempt([&] { s->synchronize(); });
  pass_.reset();
  cause.rethrow();
  collect_times();
}

void Executor::run(const std::vector<Operation>& operations, const BatchReader& read, const UpdateScalars& scalars,
                   bool inspects) {
  begin(operations, read, scalars, {}, inspects);
  issue({0, operations.size()});
  finish();
}

/// Ends what other streams of this rank wait for and what will not come: from this stream, or in a collective from other ranks.
/// Where all streams do their work at once, none of them waits: the exception reaches main(), which ends the job.
void Executor::stop_all_streams() noexcept {
  if (std::none_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->is_asynchronous(); })) return;
  for (const auto& s : streams_) s->cancel();
  for (const GroupAxis axis : {GroupAxis::shard, GroupAxis::replicate, GroupAxis::world}) mesh_->along(axis).abort();
  if (mesh_->gather) mesh_->gather->abort();
}

/// Gives operations to their streams, in the order of the list. If one of them cannot be given, the list is over.
void Executor::issue(Range range) {
  const auto run_one = [](void* context, std::size_t index) {
    const Pass& of = *static_cast<const Pass*>(context);
    try {
      of.executor->run_timed(of, index);
    } catch (...) {
      of.executor->stop_all_streams();
      throw;
    }
  };
  expect(pass_ && pass_->issued == range.begin, "the sections of an update come in their order, after it has begun");
  FirstCause cause;
  cause.attempt([&] {
    for (std::size_t& i = pass_->issued; i < range.end; ++i) {
      const Operation& op = pass_->operations[i];
      Stream& s = stream(op.stream);
      for (const int w : op.waits) s.wait(events_[static_cast<std::size_t>(w)]);
      for (const BufferId id : op.acquires) arena_.acquire(plan_.buffers[static_cast<std::size_t>(id)].bytes);
      s.submit({run_one, &*pass_, i});
      events_[i] = s.record();
      for (const BufferId id : op.frees) arena_.give_back(plan_.buffers[static_cast<std::size_t>(id)].bytes);
    }
  });
  if (!cause.found()) return;
  for (const auto& s : streams_) cause.attempt([&] { s->synchronize(); });
  pass_.reset();
  cause.rethrow();
}

void Executor::run_timed(const Pass& pass, std::size_t index) {
  const Operation& op = pass.operations[index];
  if (options_.before_operation) options_.before_operation(op);
  Stream& s = stream(op.stream);
  WorkTimes& times = times_of_stream_[static_cast<std::size_t>(op.stream)];
  s.times = {};
  const std::int64_t begin_ns = now_ns();
  run_operation(op, pass.read, pass.scalars);
  const std::int64_t end_ns = now_ns();
  if (!pass.times.empty()) pass.times[index] = {begin_ns, end_ns};
  const double seconds = 1e-9 * static_cast<double>(end_ns - begin_ns);
  switch (info_of(op.kind).account) {
    case Account::communication:
      times.collectives += seconds;
      break;
    case Account::optimizer:
      times.optimizer += seconds;
      break;
    case Account::model:
      times.gemm += s.times.gemm;
      times.attention += s.times.attention;
      times.other_kernels += seconds - s.times.gemm - s.times.attention;
      break;
  }
}

void Executor::collect_times() {
  for (std::size_t i = 0; i < stream_count; ++i) {
    WorkTimes times = std::exchange(times_of_stream_[i], {});
    const bool is_compute = i == static_cast<std::size_t>(StreamId::compute);
    if (!is_compute && streams_[i]->is_asynchronous()) {
      times_.collectives += times.collectives;
      continue;
    }
    times.exposed = times.collectives + std::exchange(streams_[i]->waited_s, 0);
    times_ += times;
  }
}

void Executor::run_operation(const Operation& op, const BatchReader& read, const UpdateScalars& scalars) {
  if (is_collective(op.kind)) return run_collective(op);
  Stream& s = stream(op.stream);
  const auto u = static_cast<std::size_t>(op.unit), block = static_cast<std::size_t>(op.block);
  const Write write = op.accumulate ? Write::add : Write::overwrite;
  StageContext context{s,
                       weights_,
                       gradients_,
                       at<float>(plan_.scratch),
                       at<float>(plan_.tables),
                       shape_,
                       scalars.dropout,
                       layout_.units().front().types.parameter};
  context.dropout.first_sequence += static_cast<std::uint64_t>(op.micro_batch) * shape_.B;
  float* const cheap = plan_.cheap < 0 ? nullptr : at<float>(plan_.cheap);
  const auto in = [&](std::size_t i) { return at<float>(op.reads[i]); };
  const auto out = [&](std::size_t i) { return at<float>(op.writes[i]); };
  const auto tokens = [&](const Location& place) { return at<std::int32_t>(place); };
  switch (op.kind) {
    case OperationKind::read_batch:
      return read(static_cast<std::size_t>(op.micro_batch), tokens(op.writes[0]), tokens(op.writes[1]));
    case OperationKind::release:  // what takes the slot next waits for it
      return;
    case OperationKind::embedding_forward:
      model_.embedding_forward(context, tokens(op.reads[0]), out(0));
      return inspect_activations(op, context.type);
    case OperationKind::block_forward:
      model_.block_forward(context, block, in(0), out(0), out(1), cheap);
      return inspect_activations(op, context.type);
    case OperationKind::recompute:
      return model_.block_forward(context, block, in(0), op.writes.size() > 2 ? out(2) : nullptr, out(0));
    case OperationKind::refill:
      return model_.block_refill(context, block, in(0), in(1), cheap);
    case OperationKind::head: {
      UpdateSums& sums = *at<UpdateSums>(op.writes[2]);
      if (op.micro_batch == 0) sums = {};
      sums.loss += model_.head_forward_backward(context, in(0), tokens(op.reads[1]),
                                                static_cast<float>(scalars.loss_scale / scalars.tokens), out(0), write);
      return;
    }
    case OperationKind::head_loss:
      if (logits_out_) return model_.head_logits(context, in(0), logits_row_, logits_out_);
      at<UpdateSums>(op.writes[1])->loss = model_.head_loss(context, in(0), tokens(op.reads[1]));
      return;
    case OperationKind::block_backward:
      return model_.block_backward(context, block, in(0), in(1), in(2), write, cheap);
    case OperationKind::embedding_backward:
      return model_.embedding_backward(context, tokens(op.reads[0]), in(1), write);
    case OperationKind::clear:
      return kernels::fill_zero(s, out(0), op.count);
    case OperationKind::add_squares:
      if (layout_.units()[u].sharded || shard_ == 0)  // what all ranks hold counts once
        kernels::add_squares(s, at<UpdateSums>(op.writes[0])->squares, in(0), op.count);
      return;
    case OperationKind::gradient_norm: {  // as torch.nn.utils.clip_grad_norm_
      UpdateSums& sums = *at<UpdateSums>(op.writes[0]);
      const double norm = std::sqrt(sums.squares.value()) / scalars.loss_scale;
      const double clipping = scalars.clip_norm > 0 ? std::min(1.0, scalars.clip_norm / (norm + 1e-6)) : 1.0;
      sums.gradient_scale = clipping / scalars.loss_scale;
      return;
    }
    case OperationKind::clip_values:  // as torch.nn.utils.clip_grad_value_
      if (at<UpdateSums>(op.reads[0])->finite())
        kernels::clip_values(s, out(0), op.count, static_cast<float>(scalars.clip_value * scalars.loss_scale));
      return;
    case OperationKind::statistics:
      return count_statistics(s, op, scalars);
    case OperationKind::directions:
    case OperationKind::optimizer: {
      const UpdateSums& sums = *at<UpdateSums>(op.reads[0]);
      if (!sums.finite()) return;  // the same decision on every rank
      const Rule& rule = *layout_.units()[u].rule;
      const UpdateFunction work = op.kind == OperationKind::optimizer ? rule.update : rule.whole.prepare;
      return work(s, memory_of(op), optimizer_, step_of(scalars, sums));
    }
    case OperationKind::whole_matrices:
      if (at<UpdateSums>(op.reads[0])->finite()) work_on_matrices(s, op);
      return;
    case OperationKind::round:
      return with_element(op.type, [&]<class E>() {
        if constexpr (!std::is_same_v<E, float>) kernels::convert(s, at<E>(op.writes[0]), in(0), op.count);
      });
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
    case OperationKind::all_reduce:
      break;
  }
  fail_expectation("unknown kind of operation", std::source_location::current());
}

void Executor::run_collective(const Operation& op) {
  Stream& s = stream(op.stream);
  Communicator& group = op.stream == StreamId::gather && mesh_->gather ? *mesh_->gather : mesh_->along(op.group);
  const Location &from = op.reads[0], &to = op.writes[0];
  const bool is_gradient = op.quantity == Quantity::gradients;
  switch (op.kind) {
    case OperationKind::all_gather:
      return group.all_gather(s, at<void>(from), at<void>(to), op.count, op.type);
    case OperationKind::reduce_scatter:
      if (is_gradient) {
        inspect(op);
        // Between parameters the slot holds what another unit left there.
        for (const Range gap : layout_.units()[static_cast<std::size_t>(op.unit)].gaps)
          kernels::fill_zero(s, at<float>(from) + gap.begin, gap.size());
      }
      return group.reduce_scatter(s, at<float>(from), at<float>(to), op.count, op.accumulate ? Into::add : Into::overwrite,
                                  op.travel);
    default:
      if (is_gradient && from == plan_.whole_gradients[static_cast<std::size_t>(op.unit)]) inspect(op);
      return group.all_reduce(s, at<void>(to), op.count, op.type, op.travel);
  }
}

/// What the optimizer works on: the operands of statistics, directions or optimizer, in the order that the builder gives them.
UnitMemory Executor::memory_of(const Operation& op) {
  const auto u = static_cast<std::size_t>(op.unit);
  const Rule& rule = *layout_.units()[u].rule;
  UnitMemory memory{.tensors = parts_[u].tensors, .slices = parts_[u].slices};
  std::size_t read = 1, written = 0;  // the sums are read first
  const bool updates = op.kind == OperationKind::optimizer;
  if (updates && rule.whole.work)
    memory.directions = at<float>(op.reads[read++]);
  else
    memory.gradients = at<float>(op.reads[read++]);
  if (op.kind == OperationKind::statistics) memory.parameters = at<float>(op.reads[read++]);
  for (std::size_t round = 0; read < op.reads.size(); ++round) memory.statistics[round] = at<std::int64_t>(op.reads[read++]);
  if (updates) {
    memory.parameters = at<float>(op.writes[written++]);
    if (const DType type = layout_.units()[u].types.parameter; type != DType::f32)
      memory.copy = {at<std::uint16_t>(op.writes[written++]), type};
  }
  if (op.kind == OperationKind::statistics)
    memory.statistics[static_cast<std::size_t>(op.round)] = at<std::int64_t>(op.writes[written++]);
  if (op.kind == OperationKind::directions) memory.directions = at<float>(op.writes[written++]);
  for (std::size_t k = 0; written < op.writes.size(); ++k) memory.states[k] = at<std::byte>(op.writes[written++]);
  return memory;
}

OptimizerStep Executor::step_of(const UpdateScalars& scalars, const UpdateSums& sums) {
  return {scalars.update - scalars.state_began, scalars.learning_rate, sums.gradient_scale, std::sqrt(sums.squares.value())};
}

/// Works on the matrices that this rank owns. All else becomes zero, so that a sum over the ranks has each matrix once.
void Executor::work_on_matrices(Stream& stream, const Operation& op) {
  const auto u = static_cast<std::size_t>(op.unit);
  const Unit& unit = layout_.units()[u];
  float* const whole = at<float>(op.writes[0]);
  for (const Range gap : unit.gaps) kernels::fill_zero(stream, whole + gap.begin, gap.size());
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const UnitTensor& tensor = parts_[u].tensors[i];
    float* const matrix = whole + unit.offsets[i];
    if (owners_[u][i] == mesh_->world->rank())
      unit.rule->whole.work(stream, matrix, tensor.rows, tensor.columns, at<float>(op.writes[1]));
    else
      kernels::fill_zero(stream, matrix, tensor.numel);
  }
}

/// This rank's part of a unit's sums. What all ranks have whole counts once.
void Executor::count_statistics(Stream& stream, const Operation& op, const UpdateScalars& scalars) {
  const UpdateSums& sums = *at<UpdateSums>(op.reads[0]);
  const Unit& unit = layout_.units()[static_cast<std::size_t>(op.unit)];
  const auto clear = [&] { std::fill_n(at<std::int64_t>(op.writes[0]), op.count, 0); };
  clear();
  if (!sums.finite()) return;
  unit.rule->statistics.count(stream, memory_of(op), optimizer_, step_of(scalars, sums), op.round);
  if (!unit.sharded && shard_ != 0) clear();
}

void Executor::reset_times() { times_ = {}; }

}  // namespace fsdp
