#include "fsdp/executor.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "kernels/exact_sum.hpp"

namespace fsdp {

using kernels::Write;

Executor::Executor(Transformer& model, const Layout& layout, const Plan& plan, BatchShape shape, const AdamWOptions& optimizer,
                   Device& device, Mesh& mesh, Communicator& world)
    : model_(model),
      layout_(layout),
      plan_(plan),
      shape_(shape),
      optimizer_(optimizer),
      mesh_(mesh),
      world_(world),
      arena_(device.allocate(plan.arena_bytes)),
      slots_(mesh.shard->allocate(device, plan.slot_bytes)),
      memory_(plan.buffers.size(), nullptr),
      weights_(model.parameters().size(), nullptr),
      gradients_(model.parameters().size(), nullptr) {
  for (auto& s : streams_) s = device.make_stream();
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b)
    if (!plan_.buffers[b].transient) bind(static_cast<BufferId>(b));
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const bool at_rest = plan_.whole_parameters[u] == plan_.parameter_shard[u];
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      if (at_rest) weights_[unit.parameters[i]] = at(plan_.whole_parameters[u]) + unit.offsets[i];
      if (!plan_.whole_gradients.empty()) gradients_[unit.parameters[i]] = at(plan_.whole_gradients[u]) + unit.offsets[i];
    }
    for (const Slice& slice : layout_.slices(u, mesh_.shard->rank())) {
      const std::size_t begin = layout_.shard_offset(u) + slice.shard_offset;
      const bool decayed = model_.parameters()[slice.parameter].decayed;
      if (!segments_.empty() && segments_.back().decayed == decayed && segments_.back().begin + segments_.back().count == begin)
        segments_.back().count += slice.range.size();
      else
        segments_.push_back({begin, slice.range.size(), decayed});
    }
  }
  model_.fill_tables({at(plan_.tables), model_.table_numel(shape_.T)}, shape_.T);
  model_.use_tables(at(plan_.tables));
}

void Executor::bind(BufferId id) {
  const PlanBuffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
  memory_[static_cast<std::size_t>(id)] = (is_slot(buffer.role) ? slots_ : arena_).acquire(buffer.offset, buffer.bytes);
}

std::span<float> Executor::shard(BufferId first) { return {at(first), layout_.total_shard_numel()}; }

void Executor::initialize_parameters(std::uint64_t seed) {
  Stream& s = stream(StreamId::compute);
  for (std::size_t u = 0; u < layout_.units().size(); ++u)
    for (const Slice& slice : layout_.slices(u, mesh_.shard->rank())) {
      const Init& init = model_.parameters()[slice.parameter].init;
      float* out = at(plan_.parameter_shard[u]) + slice.shard_offset;
      if (init.kind == Init::Kind::constant)
        kernels::fill_constant(s, out, slice.range.size(), init.value);
      else
        kernels::fill_normal(s, out, slice.range.size(), slice.range.begin, static_cast<std::uint32_t>(seed),
                             static_cast<std::uint32_t>(slice.parameter), 0.0f, init.value);
    }
}

UpdateResult Executor::run_update(const BatchReader& read, const UpdateScalars& scalars) {
  loss_sum_ = 0;
  run(plan_.update, read, scalars, HeadTask::loss);
  return result_;
}

double Executor::evaluate(const BatchReader& read) {
  loss_sum_ = 0;
  run(plan_.evaluation, read, {}, HeadTask::loss);
  return loss_sum_;
}

void Executor::logits(const BatchReader& read, std::size_t row, float* out) {
  logits_row_ = row;
  logits_out_ = out;
  run(plan_.evaluation, read, {}, HeadTask::logits);
}

void Executor::run(const std::vector<Operation>& operations, const BatchReader& read, const UpdateScalars& scalars,
                   HeadTask head) {
  for (const Operation& op : operations) {
    for (const BufferId id : op.acquires) bind(id);
    Stream& s = stream(op.stream);
    s.times = {};
    const Timer timer;
    run_operation(op, read, scalars, head);
    const double seconds = timer.seconds();
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

void Executor::run_operation(const Operation& op, const BatchReader& read, const UpdateScalars& scalars, HeadTask task) {
  Stream& s = stream(op.stream);
  const auto unit = static_cast<std::size_t>(op.unit);
  const auto block = static_cast<std::size_t>(op.block);
  const Write write = op.accumulate ? Write::add : Write::overwrite;
  const StageContext context{s, weights_, gradients_, at(plan_.scratch), shape_};
  const auto* inputs = reinterpret_cast<const std::int32_t*>(at(plan_.inputs));
  const auto* targets = reinterpret_cast<const std::int32_t*>(at(plan_.targets));
  switch (op.kind) {
    case OperationKind::read_batch:
      read(static_cast<std::size_t>(op.micro_batch), reinterpret_cast<std::int32_t*>(at(plan_.inputs)),
           reinterpret_cast<std::int32_t*>(at(plan_.targets)));
      return;
    case OperationKind::all_gather:
      mesh_.shard->all_gather(s, at(op.reads[0]), at(op.writes[0]), layout_.shard_numel(unit),
                              layout_.units()[unit].types.parameter);
      for (std::size_t i = 0; i < layout_.units()[unit].parameters.size(); ++i)
        weights_[layout_.units()[unit].parameters[i]] = at(op.writes[0]) + layout_.units()[unit].offsets[i];
      return;
    case OperationKind::release:
      for (const std::size_t p : layout_.units()[unit].parameters) weights_[p] = nullptr;
      return;
    case OperationKind::embedding_forward:
      return model_.embedding_forward(context, inputs, at(op.writes[0]));
    case OperationKind::block_forward:
      return model_.block_forward(context, block, at(op.reads[1]), at(op.writes[0]), at(op.writes[1]));
    case OperationKind::recompute:
      return model_.block_forward(context, block, at(op.reads[1]), nullptr, at(op.writes[0]));
    case OperationKind::head:
      if (task == HeadTask::logits)
        return model_.head_logits(context, at(op.reads[1]) + logits_row_ * model_.config().width, logits_out_);
      if (op.unit < 0)
        loss_sum_ += model_.head_loss(context, at(op.reads[1]), targets);
      else
        loss_sum_ += model_.head_forward_backward(context, at(op.reads[1]), targets, static_cast<float>(1.0 / scalars.tokens),
                                                  at(op.writes[0]), write);
      return;
    case OperationKind::block_backward:
      return model_.block_backward(context, block, at(op.reads[1]), at(op.reads[2]), at(op.reads[3]), write);
    case OperationKind::embedding_backward:
      return model_.embedding_backward(context, inputs, at(op.reads[2]), write);
    case OperationKind::reduce_scatter:
      // Between parameters the slot holds what another unit left there.
      for (const Range gap : layout_.units()[unit].gaps) kernels::fill_zero(s, at(op.reads[0]) + gap.begin, gap.size());
      return mesh_.shard->reduce_scatter(s, at(op.reads[0]), at(op.writes[0]), layout_.shard_numel(unit),
                                         op.accumulate ? Into::add : Into::overwrite);
    case OperationKind::all_reduce:
      return mesh_.replicate->all_reduce(s, at(op.writes[0]), layout_.shard_numel(unit));
    case OperationKind::gradient_norm:
      return reduce_norm(scalars);
    case OperationKind::optimizer:
      if (!result_.finite()) return;  // the same decision on every rank
      return adamw_update(s, segments_, parameters().data(), optimizer_state(0).data(), optimizer_state(1).data(),
                          gradients().data(), optimizer_, scalars.update, scalars.learning_rate, gradient_scale_);
  }
}

/// Norm, loss and clipping factor of the update, the same bits on every rank: integers and one canonical sum.
void Executor::reduce_norm(const UpdateScalars& scalars) {
  Stream& s = stream(StreamId::reduce);
  kernels::ExactSum sum;
  kernels::add_squares(s, sum, gradients().data(), gradients().size());
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
