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

namespace {

/// How many batches a list of the plan reads at most.
std::size_t batches_of(const Plan& plan) {
  std::size_t count = 0;
  for (const std::vector<Operation>* list : {&plan.update, &plan.evaluation})
    for (const Operation& op : *list)
      if (op.kind == OperationKind::read_batch) count = std::max(count, static_cast<std::size_t>(op.micro_batch) + 1);
  return count;
}

}  // namespace

Executor::Executor(const Model& model, const Layout& layout, const Plan& plan, BatchShape shape,
                   const OptimizerOptions& optimizer, Device& device, Buffer arena, Buffer slots, Buffer host, const Mesh& mesh,
                   ExecutorOptions options)
    : model_(model),
      layout_(layout),
      plan_(plan),
      shape_(shape),
      optimizer_(optimizer),
      mesh_(&mesh),
      shard_(static_cast<std::size_t>(mesh.shard->rank())),
      options_(std::move(options)),
      sizes_(model.sizes(shape, types().parameter, plan.cache)),
      arena_(std::move(arena)),
      slots_(std::move(slots)),
      host_(std::move(host)),
      weights_(model.parameters().size(), nullptr),
      gradients_(model.parameters().size(), nullptr),
      tokens_(device.allocate_staging(batches_of(plan) * bytes_of_batch())),
      sums_(device.allocate_staging(sizeof(UpdateSums))),
      rows_(device.allocate_staging(plan.decoding.empty() ? 0 : 3 * shape.rows() * sizeof(std::int32_t))),
      events_(std::max({plan.update.size(), plan.evaluation.size(), plan.decoding.size(), plan.publish.size()})) {
  for (const PlanBuffer& buffer : plan_.buffers) {
    Arena& where = buffer.on_host() ? host_ : is_slot(buffer.role) ? slots_ : arena_;
    memory_.push_back(where.at(buffer.offset, buffer.bytes));
    if (!buffer.transient) where.acquire(buffer.bytes);
  }
  const std::vector<ParameterSettings> settings = settings_of(optimizer_, model_.parameters());
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      weights_[unit.parameters[i]] =
          at<std::byte>(plan_.at_work(plan_.whole_parameters[u])) + unit.offsets[i] * size_of(unit.types.parameter);
      if (!plan_.gradients.empty() && unit.trainable)
        gradients_[unit.parameters[i]] = at<float>(plan_.at_work(plan_.whole_gradients[u])) + unit.offsets[i];
    }
    parts_.push_back(parts_of_unit(layout_, u, mesh_->shard->rank(), settings));
  }
  owners_ = matrix_owners(layout_, mesh_->world->size(), plan_.directions_at_once);
  for (std::size_t i = 0; i < streams().size(); ++i) {
    const auto id = static_cast<StreamId>(i);
    auto& s = streams_[i] = device.make_stream(id == StreamId::compute ? StreamUse::compute : StreamUse::communication);
    if (s->is_asynchronous() && s->kind() == DeviceKind::cpu) {  // it has a thread, for which OpenMP keeps a number of its own
      const int threads = id == StreamId::compute ? kernels::threads() : 1;
      on_stream(stream(id), [threads] { kernels::set_threads(threads); });
    }
  }
  const std::size_t longest = std::max(shape_.T, plan_.cache.positions);
  std::vector<float> tables(model_.table_numel(longest));
  model_.fill_tables(tables, longest, options_.table_type);
  view_of(plan_.tables, tables.size() * sizeof(float), StreamId::compute).write(0, std::as_bytes(std::span(tables)));
}

ShardState Executor::owned(std::string name, const std::vector<Location>& places, DType type) {
  std::vector<MemoryView> units(layout_.units().size());
  for (std::size_t u = 0; u < places.size(); ++u)
    if (places[u].buffer >= 0) units[u] = view_of(places[u], layout_.shard_numel(u) * size_of(type), StreamId::compute);
  return {std::move(name), std::move(units), Extent::element, type};
}

MemoryView Executor::view_of(const Location& place, std::size_t bytes, StreamId id) {
  const std::span memory(at<std::byte>(place), bytes);
  const bool on_host = plan_.buffers[static_cast<std::size_t>(place.buffer)].on_host();
  return on_host ? MemoryView(memory) : MemoryView(memory, stream(id));
}

ShardState Executor::parameters() { return owned(parameters_state, plan_.master, types().master); }
ShardState Executor::gradients() { return owned("gradients", plan_.gradients, types().gradient); }

std::vector<ShardState> Executor::optimizer_states() {
  std::vector<ShardState> all;
  for (std::size_t u = 0; u < plan_.optimizer_state.size(); ++u)
    for (std::size_t k = 0; k < plan_.optimizer_state[u].size(); ++k) {
      const StateInfo& info = layout_.units()[u].rule->states[k];
      auto state = std::find_if(all.begin(), all.end(), [&](const ShardState& one) { return one.name == info.name; });
      if (state == all.end())
        state = all.insert(all.end(), {std::string(info.name), std::vector<MemoryView>(layout_.units().size()), info.extent,
                                       info.extent == Extent::element ? optimizer_.state_type : DType::f32});
      state->units[u] =
          view_of(plan_.optimizer_state[u][k], layout_.state_numel(u, info.extent) * size_of(state->type), StreamId::compute);
    }
  return all;
}

std::vector<ShardState> Executor::states() {
  std::vector<ShardState> all = {parameters()};
  for (ShardState& state : optimizer_states()) all.push_back(std::move(state));
  return all;
}

void Executor::initialize_parameters(std::uint64_t seed, const std::vector<bool>& which) {
  Stream& s = stream(StreamId::compute);
  on_stream(s, [&] {
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      const Location kept = plan_.master[u], slot = plan_.at_work(kept);
      const std::size_t bytes = layout_.shard_numel(u) * size_of(types().master);
      if (slot != kept) s.copy(at<void>(slot), at<void>(kept), bytes);
      for (const Slice& slice : layout_.slices(u, static_cast<int>(shard_))) {
        if (!which.empty() && !which[slice.parameter]) continue;
        const Init& init = model_.parameters()[slice.parameter].init;
        float* out = at<float>(plan_.at_work(plan_.wide_master[u])) + slice.shard_offset;
        if (init.kind == Init::Kind::constant)
          kernels::fill_constant(s, out, slice.range.size(), init.value);
        else if (init.kind == Init::Kind::uniform)
          kernels::fill_uniform(s, out, slice.range.size(), slice.range.begin, static_cast<std::uint32_t>(seed),
                                static_cast<std::uint32_t>(slice.parameter), init.value);
        else
          kernels::fill_normal(s, out, slice.range.size(), slice.range.begin, static_cast<std::uint32_t>(seed),
                               static_cast<std::uint32_t>(slice.parameter), 0.0f, init.value);
        if (types().master == DType::bf16) kernels::convert(s, at<bf16>(slot) + slice.shard_offset, out, slice.range.size());
      }
      if (slot != kept) s.copy(at<void>(kept), at<void>(slot), bytes);
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
  expect(pass_.has_value(), "an update ends that has begun");
  const UpdateScalars scalars = pass_->scalars;
  issue({plan_.sections.gradient_norm, plan_.update.size()});
  finish();
  return result_of(scalars);
}

/// From the sums on the host.
UpdateResult Executor::result_of(const UpdateScalars& scalars) const {
  const UpdateSums& sums = host_sums();
  UpdateResult result = {sums.loss.value() / scalars.tokens, sums.norm.norm / scalars.loss_scale, sums.squares.non_finite};
  result.is_spike = result.finite() && sums.norm.finite == 0;
  return result;
}

UpdateResult Executor::run_update(const BatchReader& read, const UpdateScalars& scalars) {
  begin_update(read, scalars);
  forward_backward();
  gradient_norm();
  return update_parameters();
}

std::optional<NonFinite> Executor::find_non_finite(const BatchReader& read, const UpdateScalars& scalars) {
  std::optional<NonFinite> found;
  begin(plan_.update, read, scalars);
  for (std::size_t i = 0; i < plan_.update.size(); ++i) {
    const Operation& op = plan_.update[i];
    const bool reduces = (op.kind == OperationKind::reduce_scatter || op.kind == OperationKind::all_reduce) &&
                         op.quantity == Quantity::gradients &&
                         op.reads[0] == plan_.at_work(plan_.whole_gradients[static_cast<std::size_t>(op.unit)]);
    const bool goes_forward = op.kind == OperationKind::embedding_forward || op.kind == OperationKind::block_forward;
    if (!found && reduces) found = inspect_gradient(i);
    issue({i, i + 1});
    if (!found && goes_forward) found = inspect_activations(i);
  }
  finish();
  return found;
}

/// Looks at this rank's whole gradient of a unit, which is about to be reduced, as it will travel.
std::optional<NonFinite> Executor::inspect_gradient(std::size_t operation) {
  wait_for_streams();
  const Operation& op = plan_.update[operation];
  const auto u = static_cast<std::size_t>(op.unit);
  const Unit& unit = layout_.units()[u];
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const std::size_t n = numel(model_.parameters()[unit.parameters[i]].shape);
    Location place = op.reads[0];
    place.offset += unit.offsets[i] * sizeof(float);
    bool finite = true;
    view_of(place, n * sizeof(float), op.stream).visit<float>(0, n, [&](const float* gradient, std::size_t count) {
      with_element(op.travel, [&]<class E>() {
        const auto is_finite = [](float g) { return std::isfinite(static_cast<float>(E(g))); };
        finite = finite && std::all_of(gradient, gradient + count, is_finite);
      });
    });
    if (!finite) return NonFinite{operation, u, unit.parameters[i]};
  }
  return {};
}

/// Looks at the residual stream that a forward operation has written.
std::optional<NonFinite> Executor::inspect_activations(std::size_t operation) {
  wait_for_streams();
  const Operation& op = plan_.update[operation];
  const std::size_t stage = op.kind == OperationKind::embedding_forward ? 0 : static_cast<std::size_t>(op.block) + 1,
                    bytes = sizes_.activations[stage];
  bool finite = true;
  with_element(types().parameter, [&]<class E>() {
    const std::size_t n = bytes / sizeof(E);
    view_of(op.writes[0], n * sizeof(E), op.stream).visit<E>(0, n, [&](const E* x, std::size_t count) {
      finite = finite && std::all_of(x, x + count, [](E value) { return std::isfinite(static_cast<float>(value)); });
    });
  });
  if (!finite) return NonFinite{operation};
  return {};
}

LossSum Executor::evaluate(const BatchReader& read, float* losses) {
  losses_ = losses;
  run(plan_.evaluation, read, {});
  return host_sums().loss;
}

void Executor::decode(const DecodingStep& step, float* logits) {
  const std::size_t R = step.tokens.size();
  expect(!plan_.decoding.empty(), "a plan decodes that has caches");
  expect(R <= shape_.rows() && step.sequences.size() == R && step.positions.size() == R, "a step's rows fit the batch");
  expect(step.wanted.size() <= plan_.cache.sequences, "a sequence has one row whose successor is wanted");
  step_ = step;
  logits_ = logits;
  run(plan_.decoding, nullptr, {});
}

void Executor::record(std::span<OperationTime> times) {
  expect(times.empty() || times.size() == plan_.update.size(), "a time for each operation of the update");
  record_ = times;
}

void Executor::note_operations(FlightLanes* lanes) {
  lanes_ = lanes;
  if (!lanes || !notes_[0].empty()) return;
  notes_ = {flight_entries(plan_.update, layout_), flight_entries(plan_.evaluation, layout_),
            flight_entries(plan_.decoding, layout_), flight_entries(plan_.publish, layout_)};
}

const FlightEntry* Executor::notes_of(const std::vector<Operation>& operations) const {
  if (!lanes_) return nullptr;
  const std::array lists = {&plan_.update, &plan_.evaluation, &plan_.decoding, &plan_.publish};
  return notes_[static_cast<std::size_t>(std::find(lists.begin(), lists.end(), &operations) - lists.begin())].data();
}

/// Every list begins and ends with all streams idle, which plans rely on.
void Executor::begin(const std::vector<Operation>& operations, const BatchReader& read, const UpdateScalars& scalars,
                     std::span<OperationTime> times) {
  expect(!pass_, "one list runs at a time");
  pass_.emplace(Pass{this, operations, read, scalars, times, notes_of(operations)});
  for (const auto& s : streams()) s->begin_marks(!times.empty());
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

/// Throws what has gone wrong on any of them; the list is over then.
void Executor::wait_for_streams() {
  FirstCause cause;
  for (const auto& s : streams()) cause.attempt([&] { s->synchronize(); });
  if (cause.found()) pass_.reset();
  cause.rethrow();
}

/// The host waits once: the compute stream waits for what is still gathered or unloaded, and brings the sums. What is reduced,
/// its operations have waited for.
void Executor::finish() {
  Stream& last = stream(StreamId::compute);
  const auto bring = [](void* executor, std::size_t) {
    Executor& e = *static_cast<Executor*>(executor);
    e.stream(StreamId::compute).copy(e.sums_.data(), e.at<UpdateSums>(e.plan_.sums), sizeof(UpdateSums));
  };
  FirstCause cause;
  cause.attempt([&] {
    last.wait(stream(StreamId::gather).record());
    if (plan_.host_bytes > 0) last.wait(stream(StreamId::unload).record());
    last.submit({bring, this});
  });
  for (const auto& s : streams()) cause.attempt([&] { s->synchronize(); });
  if (!cause.found()) cause.attempt([&] { read_marks(*pass_); });
  if (!cause.found() && lanes_)
    for (std::size_t i = 0; i < streams().size(); ++i) end_all_operations((*lanes_)[i]);
  pass_.reset();
  cause.rethrow();
  collect_times();
}

void Executor::run(const std::vector<Operation>& operations, const BatchReader& read, const UpdateScalars& scalars) {
  begin(operations, read, scalars);
  issue({0, operations.size()});
  finish();
}

/// Ends what other streams of this rank wait for and what will not come: from this stream, or in a collective from other ranks.
/// Where all streams do their work at once, none of them waits: the exception reaches main(), which ends the job.
void Executor::stop_all_streams() noexcept {
  if (std::none_of(streams().begin(), streams().end(), [](const auto& s) { return s->is_asynchronous(); })) return;
  for (const auto& s : streams()) s->cancel();
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
      if (op.awaited) events_[i] = s.record();
      for (const BufferId id : op.frees) arena_.give_back(plan_.buffers[static_cast<std::size_t>(id)].bytes);
    }
  });
  if (!cause.found()) return;
  for (const auto& s : streams()) cause.attempt([&] { s->synchronize(); });
  pass_.reset();
  cause.rethrow();
}

void Executor::run_timed(const Pass& pass, std::size_t index) {
  const Operation& op = pass.operations[index];
  Stream& s = stream(op.stream);
  WorkTimes& times = times_of_stream_[static_cast<std::size_t>(op.stream)];
  s.times = {};
  FlightLane* const lane = pass.notes ? &(*lanes_)[static_cast<std::size_t>(op.stream)] : nullptr;
  const std::int64_t begin = s.mark();
  if (lane)
    begin_operation(*lane, pass.notes[index], &pass.operations == &plan_.update ? pass.scalars.update : 0,
                    s.marks_later() ? now_ns() : begin);
  if (options_.around_operation)
    options_.around_operation(op, [&] { run_operation(op, pass.read, pass.scalars); });
  else
    run_operation(op, pass.read, pass.scalars);
  const std::int64_t end = s.mark();
  if (lane && !s.marks_later()) end_operation(*lane, end);
  if (!pass.times.empty()) pass.times[index] = {begin, end};
  if (!s.marks_later()) add_time(times, op, {begin, end}, s.times);
}

void Executor::add_time(WorkTimes& times, const Operation& op, const OperationTime& time, const KernelTimes& kernels) {
  const double seconds = 1e-9 * static_cast<double>(time.end_ns - time.begin_ns);
  switch (info_of(op.kind).account) {
    case Account::communication:
    case Account::offload:
      times.collectives += seconds;
      break;
    case Account::optimizer:
      times.optimizer += seconds;
      break;
    case Account::model:
      times.gemm += kernels.gemm;
      times.attention += kernels.attention;
      times.other_kernels += seconds - kernels.gemm - kernels.attention;
      break;
  }
}

/// The streams are idle: what they have marked has a time now. On a GPU the compute stream waits between its operations.
void Executor::read_marks(const Pass& pass) {
  std::int64_t done_ns = 0;
  for (std::size_t i = 0; i < pass.times.size(); ++i) {
    const Operation& op = pass.operations[i];
    Stream& s = stream(op.stream);
    OperationTime& time = pass.times[i];
    time = {s.time_of(time.begin_ns), s.time_of(time.end_ns)};
    if (!s.marks_later()) continue;
    add_time(times_of_stream_[static_cast<std::size_t>(op.stream)], op, time, {});
    if (op.stream != StreamId::compute) continue;
    if (done_ns > 0) s.waited_s += 1e-9 * static_cast<double>(std::max<std::int64_t>(0, time.begin_ns - done_ns));
    done_ns = time.end_ns;
  }
}

bool Executor::knows_times() const {
  return !streams_[static_cast<std::size_t>(StreamId::compute)]->marks_later() || times_.total() > 0;
}

void Executor::collect_times() {
  for (std::size_t i = 0; i < streams().size(); ++i) {
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
  // What many operations share, an operation gets only if it names it.
  const auto if_among = [&](const std::vector<Location>& places, BufferId buffer) {
    const bool is_named = buffer >= 0 && std::find(places.begin(), places.end(), Location(buffer)) != places.end();
    return is_named ? at<float>(buffer) : nullptr;
  };
  StageContext context{
      s,      weights_,        gradients_,       if_among(op.writes, plan_.scratch), if_among(op.reads, plan_.tables),
      shape_, scalars.dropout, types().parameter};
  context.dropout.first_sequence +=
      static_cast<std::uint64_t>(op.micro_batch) * static_cast<std::uint64_t>(mesh_->world->size()) * shape_.B;
  context.positions = reinterpret_cast<const std::int32_t*>(if_among(op.reads, plan_.positions));
  float* const cheap = if_among(op.writes, plan_.cheap);
  const auto in = [&](std::size_t i) { return at<float>(op.reads[i]); };
  const auto out = [&](std::size_t i) { return at<float>(op.writes[i]); };
  const auto tokens = [&](const Location& place) { return at<std::int32_t>(place); };
  switch (op.kind) {
    case OperationKind::read_batch: {
      // The reader writes one behind the other: inputs, targets, and positions if the plan has them.
      const std::size_t batch = static_cast<std::size_t>(op.micro_batch);
      std::byte* const memory = tokens_.data() + batch * bytes_of_batch();
      read(batch, reinterpret_cast<std::int32_t*>(memory), reinterpret_cast<std::int32_t*>(memory + sizes_.inputs));
      s.copy(tokens(op.writes[0]), memory, sizes_.inputs);
      s.copy(tokens(op.writes[1]), memory + sizes_.inputs, sizes_.targets);
      if (plan_.positions >= 0) s.copy(tokens(op.writes[2]), memory + sizes_.inputs + sizes_.targets, bytes_of_positions());
      return;
    }
    case OperationKind::release:  // what takes the slot next waits for it
      return;
    case OperationKind::embedding_forward:
      return model_.embedding_forward(context, tokens(op.reads[0]), out(0));
    case OperationKind::block_forward:
      return model_.block_forward(context, block, in(0), out(0), out(1), cheap);
    case OperationKind::recompute:
      return model_.block_forward(context, block, in(0), op.writes.size() > 2 ? out(2) : nullptr, out(0));
    case OperationKind::refill:
      return model_.block_refill(context, block, in(0), in(1), cheap);
    case OperationKind::head: {
      UpdateSums& sums = *at<UpdateSums>(op.writes[2]);
      if (op.micro_batch == 0) kernels::clear(s, sums);
      const auto scale = static_cast<float>(scalars.loss_scale / scalars.tokens);
      return model_.head_forward_backward(context, in(0), tokens(op.reads[1]), scale, sums.loss, out(0), write);
    }
    case OperationKind::head_loss: {
      UpdateSums& sums = *at<UpdateSums>(op.writes[1]);
      kernels::clear(s, sums);
      return model_.head_loss(context, in(0), tokens(op.reads[1]), sums.loss, losses_);
    }
    case OperationKind::read_rows:
    case OperationKind::embedding_decode:
    case OperationKind::block_decode:
    case OperationKind::head_logits:
      return run_decoding(op, context, cheap);
    case OperationKind::block_backward:
      return model_.block_backward(context, block, in(0), in(1), in(2), write, cheap);
    case OperationKind::embedding_backward:
      return model_.embedding_backward(context, tokens(op.reads[0]), in(1), write);
    case OperationKind::clear:
      return kernels::fill_zero(s, out(0), op.count);
    case OperationKind::sum_gradients:
      if (op.accumulate) return kernels::add(s, out(0), in(0), op.count);
      return s.copy(out(0), in(0), op.count * sizeof(float));
    case OperationKind::add_squares:
      if (layout_.units()[u].sharded || shard_ == 0)  // what all ranks hold counts once
        kernels::add_squares(s, at<UpdateSums>(op.writes[0])->squares, in(0), op.count);
      return;
    case OperationKind::gradient_norm:
      return kernels::gradient_norm(s, *at<UpdateSums>(op.writes[0]),
                                    {.loss_scale = scalars.loss_scale,
                                     .clip_norm = scalars.clip_norm,
                                     .tokens = scalars.tokens,
                                     .most_loss = scalars.most_loss,
                                     .most_norm = scalars.most_norm});
    case OperationKind::clip_values:  // as torch.nn.utils.clip_grad_value_
      return kernels::clip_values(s, out(0), op.count, static_cast<float>(scalars.clip_value * scalars.loss_scale));
    case OperationKind::statistics:
      return count_statistics(s, op, scalars);
    case OperationKind::directions:
    case OperationKind::optimizer: {
      const Rule& rule = *layout_.units()[u].rule;
      const UpdateFunction work = op.kind == OperationKind::optimizer ? rule.update : rule.whole.prepare;
      return work(s, memory_of(op), optimizer_, step_of(op, scalars));
    }
    case OperationKind::whole_matrices:
      return work_on_matrices(s, op);
    case OperationKind::round:
      return with_element(op.type, [&]<class E>() {
        if constexpr (!std::is_same_v<E, float>) kernels::convert(s, at<E>(op.writes[0]), in(0), op.count);
      });
    case OperationKind::widen:
      return kernels::convert(s, out(0), at<bf16>(op.reads[0]), op.count);
    case OperationKind::round_at_random:
      return round_at_random(s, op, scalars);
    case OperationKind::load:
    case OperationKind::unload:
      return s.copy(at<void>(op.writes[0]), at<void>(op.reads[0]), op.count * size_of(op.type));
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
    case OperationKind::all_reduce:
      break;
  }
  fail_expectation("unknown kind of operation", std::source_location::current());
}

/// On the rows of the step, of which a rank may have none: it gathers with the others then.
void Executor::run_decoding(const Operation& op, StageContext context, float* cheap) {
  const std::size_t R = step_.tokens.size(), bytes = R * sizeof(std::int32_t);
  if (R == 0) return;
  Stream& s = context.stream;
  auto* const rows_there = at<std::int32_t>(plan_.rows);
  auto* const tokens = reinterpret_cast<std::int32_t*>(rows_.data());
  DecodedRows rows = {step_.sequences, step_.positions, rows_there, rows_there + R};
  context.shape = {1, R};
  switch (op.kind) {
    case OperationKind::read_rows:
      std::copy(step_.tokens.begin(), step_.tokens.end(), tokens);
      std::copy(step_.sequences.begin(), step_.sequences.end(), tokens + R);
      std::copy(step_.positions.begin(), step_.positions.end(), tokens + 2 * R);
      s.copy(at<std::int32_t>(op.writes[0]), tokens, bytes);
      return s.copy(rows_there, tokens + R, 2 * bytes);
    case OperationKind::embedding_decode:
      return model_.embedding_decode(context, at<std::int32_t>(op.reads[0]), rows, at<void>(op.writes[0]));
    case OperationKind::block_decode:
      if (static_cast<std::size_t>(op.block) + 1 == model_.blocks()) rows.wanted = step_.wanted;
      return model_.block_decode(context, static_cast<std::size_t>(op.block), rows, at<void>(op.reads[0]),
                                 at<void>(op.writes[0]), at<float>(op.writes[1]), plan_.cache, at<void>(op.writes[2]), cheap);
    default:
      return model_.head_logits(context, at<void>(op.reads[0]), step_.wanted, logits_);
  }
}

void Executor::run_collective(const Operation& op) {
  Stream& s = stream(op.stream);
  Collectives& group = op.stream == StreamId::gather ? mesh_->data_of_gathers() : mesh_->data_along(op.group);
  const Location &from = op.reads[0], &to = op.writes[0];
  s.subject = op.unit < 0 ? nullptr : layout_.units()[static_cast<std::size_t>(op.unit)].name.c_str();
  const auto u = static_cast<std::size_t>(op.unit);
  if (op.quantity == Quantity::gradients && from == plan_.at_work(plan_.whole_gradients[u]))
    for (const Range gap : layout_.units()[u].gaps)  // between parameters lies what another unit has left there
      kernels::fill_zero(s, at<float>(from) + gap.begin, gap.size());
  switch (op.kind) {
    case OperationKind::all_gather:
      return group.all_gather(s, at<void>(from), at<void>(to), op.count, op.type);
    case OperationKind::reduce_scatter:
      return group.reduce_scatter(s, at<float>(from), at<float>(to), op.count, op.accumulate ? Into::add : Into::overwrite,
                                  op.travel);
    default:
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
    if (types().parameter != types().master) memory.copy = {at<std::uint16_t>(op.writes[written++]), types().parameter};
  }
  if (op.kind == OperationKind::statistics)
    memory.statistics[static_cast<std::size_t>(op.round)] = at<std::int64_t>(op.writes[written++]);
  if (op.kind == OperationKind::directions) memory.directions = at<float>(op.writes[written++]);
  for (std::size_t k = 0; written < op.writes.size(); ++k) memory.states[k] = at<std::byte>(op.writes[written++]);
  return memory;
}

/// Each element by its place in its parameter, whoever has it, with other noise each time. What lies between parameters counts
/// as zero in sums.
void Executor::round_at_random(Stream& stream, const Operation& op, const UpdateScalars& scalars) {
  const auto u = static_cast<std::size_t>(op.unit);
  const Unit& unit = layout_.units()[u];
  const bool is_gradient = op.quantity == Quantity::gradients;
  bf16* const kept = at<bf16>(op.writes[0]);
  float* const wide = at<float>(op.reads[0]);
  const RandomSite site = is_gradient ? RandomSite::gradient_sums : RandomSite::master_weights;
  const auto time = static_cast<std::uint32_t>(is_gradient ? 2 * op.micro_batch + (op.accumulate ? 1 : 0) : 0);
  const auto round = [&](std::size_t parameter, Range range, std::size_t offset) {
    kernels::round_at_random(stream, kept + offset, wide + offset, range.size(),
                             kernels::rounding_noise(site, optimizer_.seed, scalars.update, parameter, range.begin, time),
                             op.accumulate ? Write::add : Write::overwrite);
  };
  if (op.reads[0] == plan_.at_work(plan_.whole_gradients[u])) {
    for (const Range gap : unit.gaps) kernels::fill_zero(stream, wide + gap.begin, gap.size());
    for (std::size_t i = 0; i < unit.parameters.size(); ++i)
      round(unit.parameters[i], {0, parts_[u].tensors[i].numel}, unit.offsets[i]);
  } else {
    for (const OptimizerSlice& slice : parts_[u].slices) round(slice.parameter, slice.range, slice.offset);
  }
}

/// Of an operation that reads the update's sums first.
OptimizerStep Executor::step_of(const Operation& op, const UpdateScalars& scalars) const {
  return {scalars.update - scalars.state_began, scalars.learning_rate, &at<UpdateSums>(op.reads[0])->norm};
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
  const Unit& unit = layout_.units()[static_cast<std::size_t>(op.unit)];
  const auto clear = [&] {
    kernels::fill_zero(stream, at<float>(op.writes[0]), op.count * sizeof(std::int64_t) / sizeof(float));
  };
  clear();
  unit.rule->statistics.count(stream, memory_of(op), optimizer_, step_of(op, scalars), op.round);
  if (!unit.sharded && shard_ != 0) clear();
}

void Executor::reset_times() { times_ = {}; }

}  // namespace fsdp
