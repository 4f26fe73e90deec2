#include "run/executor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "device/memory_view.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

Executor::Executor(const Model& model, const Layout& layout, const Plan& plan, BatchShape shape,
                   const OptimizerOptions& optimizer, Device& device, std::vector<std::unique_ptr<Storage>> memory,
                   const Mesh& mesh, ExecutorOptions options, std::size_t evaluated_sequences)
    : layout_(layout),
      plan_(plan),
      options_(std::move(options)),
      facts_{.model = model,
             .layout = layout,
             .plan = plan,
             .largest = shape,
             .evaluated = {evaluated_sequences > 0 ? evaluated_sequences : shape.B, shape.T},
             .optimizer = optimizer,
             .sizes = model.sizes(shape, layout.types().parameter, plan.cache),
             .mesh = &mesh,
             .shard = static_cast<std::size_t>(mesh.shard().rank()),
             .storages = {},
             .memory = {},
             .weights = std::vector<const void*>(model.parameters().size()),
             .gradients = std::vector<float*>(model.parameters().size()),
             .no_gradients = std::vector<float*>(model.parameters().size()),
             .parts = {},
             .owners = matrix_owners(layout, mesh.world->size(), plan.directions_at_once)},
      storages_(std::move(memory)),
      offloads_(plan.offloaded_bytes() > 0),
      events_(std::ranges::max(lists_of(plan), {}, [](const auto* list) { return list->size(); })->size()),
      times_(events_.size()),
      kernels_(events_.size()) {
  expect(storages_.size() == plan_.spaces.size(), "there is memory for each space of the plan");
  for (const PlanBuffer& buffer : plan_.buffers) {
    std::size_t space = 0;
    while (plan_.spaces[space].space != buffer.space) ++space;
    expect(buffer.offset + buffer.bytes <= plan_.spaces[space].bytes, "a planned buffer is inside its space");
    std::byte* const address = storages_[space]->address();
    facts_.storages.push_back(storages_[space].get());
    facts_.memory.push_back(address ? address + buffer.offset : nullptr);
    if (!buffer.transient && buffer.space->tier == Tier::device) peak_bytes_ = bytes_at_rest_ += buffer.bytes;
  }
  const std::vector<ParameterSettings> settings = settings_of(optimizer, model.parameters());
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      facts_.weights[unit.parameters[i]] =
          at<std::byte>(plan_.at_work(plan_.whole_parameters[u])) + unit.offsets[i] * size_of(unit.types.parameter);
      if (!plan_.gradients.empty() && unit.trainable)
        facts_.gradients[unit.parameters[i]] = at<float>(plan_.at_work(plan_.whole_gradients[u])) + unit.offsets[i];
    }
    facts_.parts.push_back(parts_of_unit(layout_, u, mesh.shard().rank(), settings));
  }
  // cuDNN builds a graph of its attention for each number of columns, so there are fewer numbers.
  rule_ = {shape.B, shape.T, options_.pad_to_multiple_of,
           model.device().cudnn_head_size > 0 ? std::size_t{8} : std::size_t{32}};
  for (std::vector<std::size_t>& half : columns_) half.assign(std::max<std::size_t>(1, micro_batches()), shape.T);
  const bool has_disk =
      std::any_of(plan_.spaces.begin(), plan_.spaces.end(), [](const SpaceUse& use) { return use.space->tier == Tier::disk; });
  for (std::size_t i = 0; i < streams().size(); ++i) {
    const auto id = static_cast<StreamId>(i);
    const bool uses_disk = has_disk && (id == StreamId::load || id == StreamId::unload);
    auto& s = streams_[i] = device.make_stream(uses_disk                 ? StreamUse::storage
                                               : id == StreamId::compute ? StreamUse::compute
                                                                         : StreamUse::communication);
    if (s->is_asynchronous() && is_host(s->kind())) {  // a stream with a thread has its own OpenMP thread count
      const int threads = id == StreamId::compute ? kernels::threads() : 1;
      on_stream(stream(id), [threads] { kernels::set_threads(threads); });
    }
  }
}

void Executor::fill_tables(std::size_t length) {
  const PositionTables* const model = facts_.model.tables;
  const std::size_t wanted = table_class(length), positions = std::max(facts_.largest.T, plan_.cache.positions);
  if (!model || wanted == table_class_) return;
  tables_.resize(model->table_numel(positions));
  model->fill_tables(tables_, positions, length, options_.table_type);
  view_of(plan_.tables, tables_.size() * sizeof(float), StreamId::compute).write(0, std::as_bytes(std::span(tables_)));
  table_class_ = wanted;
  if (table_class(positions) == table_class(1)) tables_ = {};
}

ShardState Executor::owned(std::string name, const std::vector<Location>& places, DType UnitTypes::*type) {
  ShardState state(std::move(name), std::vector<MemoryView>(layout_.units().size()), Extent::element, DType::f32);
  for (std::size_t u = 0; u < places.size(); ++u) {
    if (type) state.types[u] = layout_.units()[u].types.*type;
    if (places[u].buffer >= 0)
      state.units[u] = view_of(places[u], layout_.shard_numel(u) * size_of(state.types[u]), StreamId::compute);
  }
  return state;
}

MemoryView Executor::view_of(const Location& place, std::size_t bytes, StreamId id) {
  Storage& storage = facts_.storage_of(place);
  const bool on_device = plan_.buffers[static_cast<std::size_t>(place.buffer)].space->tier == Tier::device;
  if (!storage.address()) id = StreamId::load;  // files are read and written by streams of StreamUse::storage
  return {storage, facts_.begin_of(place), bytes, on_device || !storage.address() ? &stream(id) : nullptr};
}

DiskTraffic Executor::disk_traffic() const {
  DiskTraffic all;
  for (const auto& storage : storages_) {
    const DiskTraffic one = storage->disk_traffic();
    all.read += one.read, all.written += one.written;
  }
  return all;
}

std::size_t Executor::file_bytes() const {
  std::size_t all = 0;
  for (const auto& storage : storages_) all += storage->file_bytes();
  return all;
}

ShardState Executor::parameters() { return owned(parameters_state, plan_.master, &UnitTypes::master); }
ShardState Executor::gradients() { return owned("gradients", plan_.gradients, &UnitTypes::gradient); }

std::vector<ShardState> Executor::optimizer_states() {
  std::vector<ShardState> all;
  for (std::size_t u = 0; u < plan_.optimizer_state.size(); ++u)
    for (std::size_t k = 0; k < plan_.optimizer_state[u].size(); ++k) {
      const StateInfo& info = layout_.units()[u].rule->states[k];
      auto state = std::find_if(all.begin(), all.end(), [&](const ShardState& one) { return one.name == info.name; });
      if (state == all.end())
        state = all.insert(all.end(), {std::string(info.name), std::vector<MemoryView>(layout_.units().size()), info.extent,
                                       info.extent == Extent::element ? facts_.optimizer.state_type : DType::f32});
      state->units[u] = view_of(plan_.optimizer_state[u][k], layout_.state_numel(u, info.extent) * size_of(state->types[u]),
                                StreamId::compute);
    }
  return all;
}

std::vector<ShardState> Executor::states() {
  std::vector<ShardState> all = {parameters()};
  for (ShardState& state : optimizer_states()) all.push_back(std::move(state));
  if (auto state = average()) all.push_back(std::move(*state));
  return all;
}

std::optional<ShardState> Executor::average() {
  if (plan_.averages.empty()) return {};
  return owned(average_state, {plan_.averages.begin(), plan_.averages.end()}, nullptr);
}

void Executor::begin_average() {
  const ShardState from = parameters(), to = average().value();
  for (std::size_t u = 0; u < to.units.size(); ++u) {
    if (to.units[u].empty()) continue;
    std::size_t at = 0;
    from.visit(u, 0, to.numel(u),
               [&](std::span<const float> values) { to.write(u, std::exchange(at, at + values.size()), values); });
  }
}

void Executor::swap_average() {
  const ShardState mine = parameters(), other = average().value();
  std::vector<float> a, b;
  for (std::size_t u = 0; u < other.units.size(); ++u) {
    if (other.units[u].empty()) continue;
    expect(mine.types[u] == DType::f32, "fp32 parameters are swapped without a loss");
    constexpr std::size_t most = std::size_t{1} << 16;  // elements
    for (std::size_t at = 0; at < other.numel(u); at += a.size()) {
      a.resize(std::min(most, other.numel(u) - at)), b.resize(a.size());
      mine.read(u, at, a), other.read(u, at, b);
      mine.write(u, at, b), other.write(u, at, a);
    }
  }
}

namespace {

/// Fills a slice of a parameter with its initial values.
void fill_initial(Stream& stream, const Init& init, const Slice& slice, std::uint64_t seed, float* out) {
  const auto key = static_cast<std::uint32_t>(seed), parameter = static_cast<std::uint32_t>(slice.parameter);
  switch (init.kind) {
    case Init::Kind::constant:
      return kernels::fill_constant(stream, out, slice.range.size(), init.value);
    case Init::Kind::uniform:
      return kernels::fill_uniform(stream, out, slice.range.size(), slice.range.begin, key, parameter, init.value);
    case Init::Kind::normal:
      return kernels::fill_normal(stream, out, slice.range.size(), slice.range.begin, key, parameter, 0.0f, init.value);
  }
}

}  // namespace

void Executor::initialize_parameters(std::uint64_t seed, const std::vector<bool>& which) {
  const ShardState state = parameters();
  const auto each_slice = [&](std::size_t unit, const auto& fill) {
    for (const Slice& slice : layout_.slices(unit, static_cast<int>(facts_.shard)))
      if (which.empty() || which[slice.parameter]) {
        expect(!facts_.model.parameters()[slice.parameter].quantized, "quantized matrices come from a model");
        fill(slice, facts_.model.parameters()[slice.parameter].init);
      }
  };
  const auto by_host = [&](std::size_t u) {
    return state.types[u] != DType::f32 || !facts_.storage_of(plan_.master[u]).address();
  };
  Stream& s = stream(StreamId::compute);
  on_stream(s, [&] {
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      if (by_host(u)) continue;
      const Location kept = plan_.master[u], slot = plan_.at_work(kept);
      const std::size_t bytes = state.units[u].bytes();
      if (slot != kept) facts_.storage_of(kept).read(s, facts_.begin_of(kept), at<void>(slot), bytes);
      each_slice(u, [&](const Slice& slice, const Init& init) {
        fill_initial(s, init, slice, seed, at<float>(slot) + slice.shard_offset);
      });
      if (slot != kept) facts_.storage_of(kept).write(s, facts_.begin_of(kept), at<void>(slot), bytes);
    }
  });
  // Other types are rounded from fp32 on the host, in pieces. Parameters in files are also made there.
  constexpr std::size_t most_at_once = std::size_t{1} << 20;
  const auto host = make_host_stream();
  std::vector<float> values;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (!by_host(u)) continue;
    each_slice(u, [&](const Slice& slice, const Init& init) {
      for (Slice piece = slice; !piece.range.empty(); piece.range = {piece.range.end, slice.range.end}) {
        piece.range.end = std::min(slice.range.end, piece.range.begin + most_at_once);
        values.resize(piece.range.size());
        fill_initial(*host, init, piece, seed, values.data());
        state.write(u, slice.shard_offset + (piece.range.begin - slice.range.begin), values);
      }
    });
  }
}

void Executor::count_from(const std::vector<std::uint64_t>& missed) {
  for (std::size_t u = 0; u < layout_.units().size(); ++u)
    for (std::size_t i = 0; i < layout_.units()[u].parameters.size(); ++i)
      facts_.parts[u].tensors[i].missed = missed.at(layout_.units()[u].parameters[i]);
}

void Executor::publish_parameters() { run(plan_.publish); }

void Executor::begin_update(const UpdateScalars& scalars) {
  expect(!pass_, "one list runs at a time");
  next_half_ = !next_half_;
  begin(plan_.update, scalars);
}
void Executor::forward_backward() { issue({0, plan_.sections.forward_backward}); }
void Executor::gradient_norm() { issue({plan_.sections.forward_backward, plan_.sections.gradient_norm}); }

UpdateResult Executor::update_parameters() {
  expect(pass_.has_value(), "the update has begun before it ends");
  const UpdateScalars scalars = pass_->scalars;
  issue({plan_.sections.gradient_norm, plan_.update.size()});
  finish();
  const UpdateSums& sums = report();
  UpdateResult result = {sums.loss.value() / scalars.tokens, at<const LossSum>({plan_.report, sizeof(UpdateSums)})->value(),
                         sums.norm.norm / scalars.loss_scale, sums.squares.non_finite};
  result.entropy = sums.loss.entropy() / scalars.tokens;
  result.accuracy = static_cast<double>(sums.loss.likeliest) / scalars.tokens;
  result.is_spike = result.finite() && sums.norm.finite == 0;
  return result;
}

UpdateResult Executor::run_update(const BatchReader& read, const UpdateScalars& scalars, const std::function<void()>& check) {
  expect(!pass_, "one list runs at a time");
  for (const Operation& op : plan_.update)
    if (op.find(OperandName::tokens)) {
      const auto index = static_cast<std::size_t>(op.micro_batch);
      read(index, next_batch(index), next_batch(index) + batch().inputs / sizeof(std::int32_t));
      shorten(index);
    }
  begin_update(scalars);
  forward_backward();
  if (check) {
    wait_for_streams();
    try {
      check();
    } catch (...) {
      pass_.reset();
      throw;
    }
  }
  gradient_norm();
  return update_parameters();
}

std::optional<NonFinite> Executor::find_non_finite(const UpdateScalars& scalars) {
  std::optional<NonFinite> found;
  const DType type = types().parameter;
  begin(plan_.update, scalars);
  for (std::size_t i = 0; i < plan_.update.size(); ++i) {
    const Operation& op = plan_.update[i];
    const bool reduces = is_collective(op) && op.kind->collective != Collective::all_gather && op.unit >= 0 &&
                         reads_of(op).front() == plan_.at_work(plan_.whole_gradients[static_cast<std::size_t>(op.unit)]);
    if (!found && reduces) found = inspect_gradient(i);
    issue({i, i + 1});
    const Location* const out = op.find(OperandName::x_out);  // the residual stream after a forward operation
    if (!found && out) {
      const std::size_t bytes = facts_.sizes.activations[static_cast<std::size_t>(op.stage)] / facts_.largest.T *
                                pass_->columns[static_cast<std::size_t>(op.micro_batch)];
      if (!is_finite(op, *out, bytes, type, type)) found = NonFinite{i};
    }
  }
  finish();
  return found;
}

/// Returns true if the `bytes` bytes of elements of type `type` at `place`, an operand of `op`, are finite after they are
/// rounded to `sent`.
bool Executor::is_finite(const Operation& op, const Location& place, std::size_t bytes, DType type, DType sent) {
  wait_for_streams();
  bool finite = true;
  with_element(type, [&]<class E>() {
    view_of(place, bytes, op.stream).visit<E>(0, bytes / sizeof(E), [&](const E* x, std::size_t n) {
      with_element(sent, [&]<class S>() {
        const auto holds = [](E value) { return std::isfinite(static_cast<float>(S(static_cast<float>(value)))); };
        finite = finite && std::all_of(x, x + n, holds);
      });
    });
  });
  return finite;
}

/// Checks this rank's whole gradient of a unit before its reduction, rounded to the type in which it is sent.
std::optional<NonFinite> Executor::inspect_gradient(std::size_t operation) {
  const Operation& op = plan_.update[operation];
  const auto u = static_cast<std::size_t>(op.unit);
  const Unit& unit = layout_.units()[u];
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    Location place = reads_of(op).front();
    place.offset += unit.offsets[i] * sizeof(float);
    const std::size_t bytes = numel(facts_.model.parameters()[unit.parameters[i]].shape) * sizeof(float);
    if (!is_finite(op, place, bytes, DType::f32, op.reduce_dtype)) return NonFinite{operation, u, unit.parameters[i]};
  }
  return {};
}

/// Reads into the half of the buffer that does not hold the batch of the next update. `whole`: with all columns.
void Executor::read_for_evaluation(const BatchReader& read, std::size_t B, bool whole) {
  expect(!pass_, "one list runs at a time");
  auto* const memory = at<std::int32_t>(plan_.tokens) + (next_half_ ? 0 : half_of_batches()) / sizeof(std::int32_t);
  read(0, memory, memory + facts_.batch(B).inputs / sizeof(std::int32_t));
  evaluated_columns() = whole ? facts_.largest.T : shorten(memory, B);
}

void Executor::evaluate_stage(const BatchReader& read, std::size_t stage, const std::function<void(const MemoryView&)>& take,
                              InnerOutput* inner) {
  read_for_evaluation(read, facts_.evaluated.B, true);
  const std::vector<Operation>& all = plan_.evaluation;
  const auto op = std::find_if(all.begin(), all.end(), [&](const Operation& one) {
    return one.stage == static_cast<int>(stage) && one.find(OperandName::x_out);
  });
  expect(op != all.end(), "every stage but the head has an output");
  begin(all, static_cast<std::size_t>(op - all.begin()) + 1, {}, inner);
  const std::size_t bytes = facts_.sizes.activations[stage] / facts_.largest.B * facts_.evaluated.B;
  run_and_take([&] { take(view_of(op->at(OperandName::x_out), bytes, op->stream)); });
}

void Executor::input_gradients(const BatchReader& read, double tokens, double loss_scale,
                               const std::function<void(const MemoryView&)>& take) {
  expect(!plan_.input_gradients.empty(), "the plan has a list for gradients of the inputs");
  read_for_evaluation(read, facts_.largest.B, true);
  const std::vector<Operation>& all = plan_.input_gradients;
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const Operation& one) { return one.find(OperandName::dx); });
  begin(all, {.tokens = tokens, .loss_scale = loss_scale});
  run_and_take([&] { take(view_of(last->at(OperandName::dx), facts_.sizes.activations.front(), last->stream)); });
}

/// Runs the operations of the list, then `take`, which may access their results. A view of them copies on the stream of an
/// operation, and waits for it.
void Executor::run_and_take(const std::function<void()>& take) {
  issue({0, pass_->list.times.size()});
  std::exception_ptr error;
  try {
    take();
  } catch (...) {
    error = std::current_exception();
  }
  finish();
  if (error) std::rethrow_exception(error);
}

LossSum Executor::evaluate(const BatchReader& read, float* losses) {
  read_for_evaluation(read, facts_.evaluated.B, false);
  run(plan_.evaluation);
  if (losses) {
    const auto [B, T] = facts_.evaluated;
    const std::size_t columns = evaluated_columns();
    const float* row = at<const float>(plan_.losses);
    for (std::size_t b = 0; b < B; ++b, row += columns, losses += T)
      std::fill_n(std::copy_n(row, columns, losses), T - columns, 0.0f);
  }
  return report().loss;
}

void Executor::decode(const DecodingStep& step, float* logits) {
  const std::size_t R = step.tokens.size();
  expect(!plan_.decoding.empty(), "only a plan with caches can decode");
  expect(R <= facts_.largest.rows() && step.sequences.size() == R && step.positions.size() == R, "a step's rows fit the batch");
  expect(step.wanted.size() <= plan_.cache.sequences, "each sequence has at most one row with wanted logits");
  auto* memory = at<std::int32_t>(plan_.step);
  const auto keep = [&](std::span<const std::int32_t> numbers) {
    const std::span kept(memory, numbers.size());
    memory = std::copy(numbers.begin(), numbers.end(), memory);
    return kept;
  };
  step_ = {keep(step.tokens), keep(step.sequences), keep(step.positions), keep(step.wanted), step.length};
  run(plan_.decoding);
  std::copy_n(at<const float>(plan_.logits), step.wanted.size() * facts_.sizes.logits / sizeof(float), logits);
}

std::size_t Executor::micro_batches() const {
  std::size_t count = 0;
  for (const Operation& op : plan_.update) count += op.find(OperandName::tokens) != nullptr;
  return count;
}

/// The bytes of all micro-batches of an update, or of the batch of an evaluation if that is larger; 0 without updates.
std::size_t Executor::half_of_batches() const {
  const std::size_t count = micro_batches();
  return count == 0 ? 0 : std::max(count * batch().bytes(), evaluated_batch().bytes());
}

/// Moves the rows of a batch of B sequences together, without the last columns, and returns the number of columns left.
std::size_t Executor::shorten(std::int32_t* memory, std::size_t B) const {
  const std::size_t T = facts_.largest.T;
  if (!facts_.model.takes_short_rows) return T;
  const BatchLayout sizes = facts_.batch(B);
  const std::size_t width = sizes.inputs / sizeof(std::int32_t) / (B * T);  // of a row of inputs
  std::int32_t *const targets = memory + B * T * width, *const positions = sizes.positions > 0 ? targets + B * T : nullptr;
  std::size_t present = 0;
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t t = T; t > present; --t)
      if (targets[b * T + t - 1] >= 0) present = t;
  const std::size_t columns = rule_.columns(present);
  const auto move_together = [&](std::int32_t* rows, std::size_t words) {
    for (std::size_t b = 1; b < B && columns < T; ++b)
      std::copy_n(rows + b * T * words, columns * words, rows + b * columns * words);
  };
  move_together(memory, width), move_together(targets, 1);
  if (positions) move_together(positions, 1);
  return columns;
}

std::size_t Executor::positions() const {
  const std::vector<std::size_t>& columns = columns_[next_half_ ? 0 : 1];
  return facts_.largest.B * std::accumulate(columns.begin(), columns.end(), std::size_t{0});
}

std::size_t Executor::shorten(std::size_t index) {
  return columns_[next_half_ ? 1 : 0].at(index) = shorten(next_batch(index), facts_.largest.B);
}

std::int32_t* Executor::next_batch(std::size_t index) {
  const std::size_t begin = next_half_ ? half_of_batches() : 0;
  return reinterpret_cast<std::int32_t*>(at<std::byte>(plan_.tokens) + begin + index * batch().bytes());
}

void Executor::begin(const std::vector<Operation>& operations, const UpdateScalars& scalars) {
  begin(operations, operations.size(), scalars);
}

/// Every list begins and ends with all streams idle. Plans rely on this. Only the first `count` operations will run.
void Executor::begin(const std::vector<Operation>& operations, std::size_t count, const UpdateScalars& scalars,
                     InnerOutput* inner) {
  expect(!pass_, "one list runs at a time");
  fill_tables(&operations == &plan_.decoding ? step_.length : facts_.largest.T);
  bytes_in_use_ = bytes_at_rest_;
  const ListRun list = {operations, &operations == &plan_.update ? scalars.update : 0, streams(),
                        std::span(times_).first(count), std::span(kernels_).first(count)};
  pass_.emplace(Pass{this, list, scalars, next_half_ ? 0 : half_of_batches(), columns_[next_half_ ? 0 : 1], inner});
  bool wanted = false;
  for (Observer* const observer : observers_) wanted |= observer->needs_times(list);
  for (const auto& s : streams()) s->begin_marks(wanted);
  pass_->list.is_timed = wanted || !stream(StreamId::compute).marks_later();
}

namespace {

/// Keeps the error that is most likely the cause: StreamFailed and GroupAborted are consequences of another error.
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

/// Waits for all streams. If work on any of them failed, ends the list and throws the error.
void Executor::wait_for_streams() {
  FirstCause cause;
  for (const auto& s : streams()) cause.attempt([&] { s->synchronize(); });
  if (cause.found()) pass_.reset();
  cause.rethrow();
}

/// Waits for the list to finish. The compute stream first waits for outstanding gathers and unloads (its operations have
/// already waited for reductions), so that the host waits only once.
void Executor::finish() {
  Stream& last = stream(StreamId::compute);
  FirstCause cause;
  cause.attempt([&] {
    last.wait(stream(StreamId::gather).record());
    if (offloads_) last.wait(stream(StreamId::unload).record());
  });
  for (const auto& s : streams()) cause.attempt([&] { s->synchronize(); });
  if (!cause.found()) cause.attempt([&] { end_list(); });
  pass_.reset();
  cause.rethrow();
}

/// Converts the marks of the list to times, and shows the list to the observers. All streams must be idle.
void Executor::end_list() {
  for (std::size_t i = 0; pass_->list.is_timed && i < pass_->list.times.size(); ++i) {
    const Stream& s = stream(pass_->list.operations[i].stream);
    times_[i] = {s.time_of(times_[i].begin_ns), s.time_of(times_[i].end_ns)};
  }
  for (Observer* const observer : observers_) observer->finished(pass_->list);
}

void Executor::run(const std::vector<Operation>& operations) {
  begin(operations);
  issue({0, operations.size()});
  finish();
}

/// After an error, ends all waits of this rank's streams. A stream may wait for the failed stream, or for other ranks in a
/// collective. If all streams run work immediately, no stream waits, and the exception reaches main(), which ends the job.
void Executor::stop_all_streams() noexcept {
  if (std::none_of(streams().begin(), streams().end(), [](const auto& s) { return s->is_asynchronous(); })) return;
  for (const auto& s : streams()) s->cancel();
  for (const GroupAxis axis : group_axes) facts_.mesh->along(axis).abort();
  for (const auto& group : {&facts_.mesh->gather, &facts_.mesh->layers})
    if (*group) (*group)->abort();
}

/// Submits operations to their streams, in the order of the list. If that fails for an operation, the list ends.
void Executor::issue(Range range) {
  const auto run_one = [](void* context, std::size_t index) {
    const Pass& of = *static_cast<const Pass*>(context);
    try {
      of.executor->run_observed(of, index);
    } catch (...) {
      of.executor->stop_all_streams();
      throw;
    }
  };
  expect(pass_ && pass_->issued == range.begin, "the sections of an update run in order, after the update has begun");
  FirstCause cause;
  cause.attempt([&] {
    for (std::size_t& i = pass_->issued; i < range.end; ++i) {
      const Operation& op = pass_->list.operations[i];
      Stream& s = stream(op.stream);
      for (const int w : op.waits) s.wait(events_[static_cast<std::size_t>(w)]);
      for (const BufferId id : op.acquires) bytes_in_use_ += plan_.buffers[static_cast<std::size_t>(id)].bytes;
      peak_bytes_ = std::max(peak_bytes_, bytes_in_use_);
      s.submit({run_one, &*pass_, i});
      if (op.awaited) events_[i] = s.record();
      for (const BufferId id : op.frees) {
        const std::size_t bytes = plan_.buffers[static_cast<std::size_t>(id)].bytes;
        expect(bytes <= bytes_in_use_, "no more memory is given back than was taken");
        bytes_in_use_ -= bytes;
      }
    }
  });
  if (!cause.found()) return;
  for (const auto& s : streams()) cause.attempt([&] { s->synchronize(); });
  pass_.reset();
  cause.rethrow();
}

void Executor::run_observed(const Pass& pass, std::size_t index) {
  const Operation& op = pass.list.operations[index];
  Stream& s = stream(op.stream);
  s.times = {};
  times_[index].begin_ns = s.mark();
  for (Observer* const observer : observers_) observer->begin(pass.list, index);
  if (is_collective(op)) s.subject = op.unit < 0 ? nullptr : layout_.units()[static_cast<std::size_t>(op.unit)].name.c_str();
  op.kind->run({facts_,
                s,
                op,
                pass.scalars,
                step_,
                pass.batch_begin,
                {shape_of(pass.list.operations).B, pass.columns[static_cast<std::size_t>(op.micro_batch)]},
                pass.inner});
  times_[index].end_ns = s.mark();
  kernels_[index] = s.marks_later() ? KernelTimes() : s.times;
  for (Observer* const observer : observers_) observer->end(pass.list, index);
}

}  // namespace fsdp
