#include "fsdp/executor.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "kernels/exact_sum.hpp"

namespace fsdp {

using kernels::Write;

Executor::Executor(Transformer& model, const Layout& layout, const Plan& plan, BatchShape shape, const AdamWOptions& optimizer,
                   Device& device, Buffer arena, Buffer slots, Mesh& mesh, Communicator& world)
    : model_(model),
      layout_(layout),
      plan_(plan),
      shape_(shape),
      optimizer_(optimizer),
      mesh_(mesh),
      world_(world),
      arena_(std::move(arena)),
      slots_(std::move(slots)),
      memory_(plan.buffers.size(), nullptr),
      weights_(model.parameters().size(), nullptr),
      gradients_(model.parameters().size(), nullptr) {
  for (auto& s : streams_) s = device.make_stream();
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b)
    if (!plan_.buffers[b].transient) bind(static_cast<BufferId>(b));
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      if (plan_.whole_at_rest(u)) weights_[unit.parameters[i]] = at(plan_.whole_parameters[u]) + unit.offsets[i];
      if (!plan_.gradients.empty() && unit.trainable)
        gradients_[unit.parameters[i]] = at(plan_.whole_gradients[u]) + unit.offsets[i];
    }
    auto& segments = segments_.emplace_back();
    for (const Slice& slice : layout_.slices(u, mesh_.shard->rank())) {
      const bool decayed = model_.parameters()[slice.parameter].decayed;
      if (!segments.empty() && segments.back().decayed == decayed &&
          segments.back().begin + segments.back().count == slice.shard_offset)
        segments.back().count += slice.range.size();
      else
        segments.push_back({slice.shard_offset, slice.range.size(), decayed});
    }
  }
  model_.fill_tables({at(plan_.tables), model_.table_numel(shape_.T)}, shape_.T);
  model_.use_tables(at(plan_.tables));
}

void Executor::bind(BufferId id) {
  const PlanBuffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
  memory_[static_cast<std::size_t>(id)] = (is_slot(buffer.role) ? slots_ : arena_).acquire(buffer.offset, buffer.bytes);
}

/// Of parameters that are whole at rest, this rank changes its part.
float* Executor::owned_parameters(std::size_t unit) const {
  const bool part = plan_.whole_at_rest(unit) && layout_.units()[unit].shards > 1;
  const std::size_t offset = part ? static_cast<std::size_t>(mesh_.shard->rank()) * layout_.shard_numel(unit) : 0;
  return at(plan_.parameters[unit]) + offset;
}

std::vector<std::span<float>> Executor::parameters() {
  std::vector<std::span<float>> all;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) all.emplace_back(owned_parameters(u), layout_.shard_numel(u));
  return all;
}

std::vector<std::span<float>> Executor::owned(const std::vector<BufferId>& buffers) const {
  std::vector<std::span<float>> all;
  for (std::size_t u = 0; u < buffers.size(); ++u)
    all.push_back(buffers[u] < 0 ? std::span<float>() : std::span<float>(at(buffers[u]), layout_.shard_numel(u)));
  return all;
}

std::vector<std::span<float>> Executor::gradients() { return owned(plan_.gradients); }
std::vector<std::span<float>> Executor::optimizer_state(std::size_t i) { return owned(plan_.optimizer_state.at(i)); }

void Executor::initialize_parameters(std::uint64_t seed) {
  Stream& s = stream(StreamId::compute);
  for (std::size_t u = 0; u < layout_.units().size(); ++u)
    for (const Slice& slice : layout_.slices(u, mesh_.shard->rank())) {
      const Init& init = model_.parameters()[slice.parameter].init;
      float* out = owned_parameters(u) + slice.shard_offset;
      if (init.kind == Init::Kind::constant)
        kernels::fill_constant(s, out, slice.range.size(), init.value);
      else
        kernels::fill_normal(s, out, slice.range.size(), slice.range.begin, static_cast<std::uint32_t>(seed),
                             static_cast<std::uint32_t>(slice.parameter), 0.0f, init.value);
    }
}

void Executor::publish_parameters() { run(plan_.publish, nullptr, {}); }

UpdateResult Executor::run_update(const BatchReader& read, const UpdateScalars& scalars) {
  loss_sum_ = 0;
  run(plan_.update, read, scalars);
  record_ = {};
  return result_;
}

double Executor::evaluate(const BatchReader& read) {
  loss_sum_ = 0;
  logits_out_ = nullptr;
  run(plan_.evaluation, read, {});
  return loss_sum_;
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

void Executor::run(const std::vector<Operation>& operations, const BatchReader& read, const UpdateScalars& scalars) {
  OperationTime* time = &operations == &plan_.update && !record_.empty() ? record_.data() : nullptr;
  for (const auto& s : streams_) s->synchronize();  // what plans rely on
  for (const Operation& op : operations) {
    for (const BufferId id : op.acquires) bind(id);
    Stream& s = stream(op.stream);
    s.times = {};
    const std::int64_t begin_ns = now_ns();
    run_operation(op, read, scalars);
    const std::int64_t end_ns = now_ns();
    if (time) *time++ = {begin_ns, end_ns};
    const double seconds = 1e-9 * static_cast<double>(end_ns - begin_ns);
    switch (op.kind) {
      case OperationKind::all_gather:
      case OperationKind::reduce_scatter:
      case OperationKind::all_reduce:
        times_.collectives += seconds;
        break;
      case OperationKind::gradient_norm:
      case OperationKind::optimizer:
        times_.optimizer += seconds;
        break;
      default:
        times_.gemm += s.times.gemm;
        times_.attention += s.times.attention;
        times_.other_kernels += seconds - s.times.gemm - s.times.attention;
    }
    for (const BufferId id : op.frees) {
      memory_[static_cast<std::size_t>(id)] = nullptr;
      arena_.give_back(plan_.buffers[static_cast<std::size_t>(id)].bytes);
    }
  }
}

void Executor::run_operation(const Operation& op, const BatchReader& read, const UpdateScalars& scalars) {
  Stream& s = stream(op.stream);
  const auto u = static_cast<std::size_t>(op.unit), block = static_cast<std::size_t>(op.block);
  const Write write = op.accumulate ? Write::add : Write::overwrite;
  StageContext context{s, weights_, gradients_, at(plan_.scratch), shape_, scalars.dropout};
  context.dropout.first_sequence += static_cast<std::uint64_t>(op.micro_batch) * shape_.B;
  float* const cheap = plan_.cheap < 0 ? nullptr : at(plan_.cheap);
  const auto tokens = [&](BufferId id) { return reinterpret_cast<std::int32_t*>(at(id)); };
  const auto in = [&](std::size_t i) { return at(op.reads[i]); };
  const auto out = [&](std::size_t i) { return at(op.writes[i]); };
  switch (op.kind) {
    case OperationKind::read_batch:
      return read(static_cast<std::size_t>(op.micro_batch), tokens(op.writes[0]), tokens(op.writes[1]));
    case OperationKind::all_gather: {
      const Unit& unit = layout_.units()[u];
      float* const whole = at(plan_.whole_parameters[u]);
      if (!fake_collectives_)
        mesh_.shard->all_gather(s, owned_parameters(u), whole, layout_.shard_numel(u), unit.types.parameter);
      for (std::size_t i = 0; i < unit.parameters.size(); ++i) weights_[unit.parameters[i]] = whole + unit.offsets[i];
      return;
    }
    case OperationKind::release:
      for (const std::size_t p : layout_.units()[u].parameters) weights_[p] = nullptr;
      return;
    case OperationKind::embedding_forward:
      return model_.embedding_forward(context, tokens(op.reads[0]), out(0));
    case OperationKind::block_forward:
      return model_.block_forward(context, block, in(0), out(0), out(1), cheap);
    case OperationKind::recompute:
      return model_.block_forward(context, block, in(0), op.writes.size() > 2 ? out(2) : nullptr, out(0));
    case OperationKind::refill:
      return model_.block_refill(context, block, in(0), in(1), cheap);
    case OperationKind::head:
      loss_sum_ += model_.head_forward_backward(context, in(0), tokens(op.reads[1]), static_cast<float>(1.0 / scalars.tokens),
                                                out(0), write);
      return;
    case OperationKind::head_loss:
      if (logits_out_) return model_.head_logits(context, in(0) + logits_row_ * model_.config().width, logits_out_);
      loss_sum_ += model_.head_loss(context, in(0), tokens(op.reads[1]));
      return;
    case OperationKind::block_backward:
      return model_.block_backward(context, block, in(0), in(1), in(2), write, cheap);
    case OperationKind::embedding_backward:
      return model_.embedding_backward(context, tokens(op.reads[0]), in(1), write);
    case OperationKind::clear:
      return kernels::fill_zero(s, at(plan_.whole_gradients[u]), layout_.units()[u].padded_numel);
    case OperationKind::reduce_scatter: {
      if (fake_collectives_) return;
      float* const whole = at(plan_.whole_gradients[u]);
      // Between parameters the slot holds what another unit left there.
      for (const Range gap : layout_.units()[u].gaps) kernels::fill_zero(s, whole + gap.begin, gap.size());
      return mesh_.shard->reduce_scatter(s, whole, at(plan_.gradients[u]), layout_.shard_numel(u),
                                         op.accumulate ? Into::add : Into::overwrite);
    }
    case OperationKind::all_reduce: {
      if (fake_collectives_) return;
      Communicator& holders = layout_.units()[u].sharded ? *mesh_.replicate : world_;
      return holders.all_reduce(s, at(plan_.gradients[u]), layout_.shard_numel(u));
    }
    case OperationKind::gradient_norm:
      return reduce_norm(scalars);
    case OperationKind::optimizer:
      if (!result_.finite()) return;  // the same decision on every rank
      for (std::size_t unit = 0; unit < layout_.units().size(); ++unit)
        if (layout_.units()[unit].trainable)
          adamw_update(s, segments_[unit], owned_parameters(unit), at(plan_.optimizer_state[0][unit]),
                       at(plan_.optimizer_state[1][unit]), at(plan_.gradients[unit]), optimizer_, scalars.update,
                       scalars.learning_rate, gradient_scale_);
      return;
  }
}

/// Norm, loss and clipping factor of the update, the same bits on every rank: integers and one canonical sum.
void Executor::reduce_norm(const UpdateScalars& scalars) {
  Stream& s = stream(StreamId::reduce);
  kernels::ExactSum sum;
  for (std::size_t u = 0; u < layout_.units().size(); ++u)  // what all ranks hold counts once
    if (plan_.gradients[u] >= 0 && (layout_.units()[u].sharded || mesh_.shard->rank() == 0))
      kernels::add_squares(s, sum, at(plan_.gradients[u]), layout_.shard_numel(u));
  sum.normalize();
  static_assert(sizeof(sum) == kernels::ExactSum::words * sizeof(std::int64_t));
  mesh_.shard->all_reduce(s, reinterpret_cast<std::int64_t*>(&sum), kernels::ExactSum::words);
  world_.all_reduce(s, &loss_sum_, 1);
  result_.non_finite = sum.non_finite;
  result_.loss = loss_sum_ / scalars.tokens;
  result_.gradient_norm = std::sqrt(sum.value());
  // As torch.nn.utils.clip_grad_norm_.
  const double factor = scalars.clip_norm > 0 ? scalars.clip_norm / (result_.gradient_norm + 1e-6) : 1.0;
  gradient_scale_ = std::min(1.0, factor);
}

void Executor::reset_times() { times_ = {}; }

}  // namespace fsdp
