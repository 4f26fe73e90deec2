// The collectives. The count, type and group of a collective follow from its unit and its operands.
#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/update_sums.hpp"
#include "plan/check/gradient_states.hpp"
#include "plan/traffic.hpp"
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

constexpr OperandSpec of_all_gather_parameters[] = {{part, reads}, {weights, overwrites}};
constexpr OperandSpec of_all_gather_directions[] = {{direction, reads}, {matrices, overwrites}};
constexpr OperandSpec of_release[] = {{weights, consumes}};
constexpr OperandSpec of_reduce_scatter_gradient[] = {{whole_gradient, consumes}, {sum, accumulates}};
constexpr OperandSpec of_reduce_scatter_directions[] = {{matrices, consumes}, {direction, overwrites}};
constexpr OperandSpec of_all_reduce_gradient[] = {{sum, changes}};
constexpr OperandSpec of_all_reduce_directions[] = {{direction, changes}};
constexpr OperandSpec of_all_reduce_statistics[] = {{all_words, changes}};
constexpr OperandSpec of_all_reduce_squares[] = {{squares, changes}};
constexpr OperandSpec of_gather_outputs[] = {{x, reads}, {all_outputs, overwrites}};
constexpr OperandSpec of_gather_targets[] = {{targets, reads}, {all_targets, overwrites}};
constexpr OperandSpec of_scatter_outputs[] = {{all_dx, consumes}, {gathered_dx, clobbers}, {dx, changes}};
constexpr OperandSpec of_all_reduce_loss[] = {{loss, changes}, {own_loss, overwrites}};

Collectives& group_of(const Running& r) { return group_of(r.op, *r.rank.mesh); }

void all_gather(const Running& r) {
  const std::vector<Operand>& operands = r.op.operands;
  group_of(r).all_gather(r.stream, r.rank.at<void>(operands[0].place), r.rank.at<void>(operands[1].place), r.op.count,
                         r.op.type);
}
void reduce_scatter(const Running& r) {
  const std::vector<Operand>& operands = r.op.operands;
  group_of(r).reduce_scatter(r.stream, r.rank.at<float>(operands[0].place), r.rank.at<float>(operands[1].place), r.op.count,
                             r.op.accumulate ? Into::add : Into::overwrite, r.op.reduce_dtype);
}
void all_reduce(const Running& r) {
  group_of(r).all_reduce(r.stream, r.rank.at<void>(r.op.operands[0].place), r.op.count, r.op.type, r.op.reduce_dtype);
}
/// Zeroes the gaps between parameters, which may hold another unit's data.
void clear_gaps(const Running& r, const Location& whole) {
  for (const Range gap : r.unit().gaps) kernels::fill_zero(r.stream, r.rank.at<float>(whole) + gap.begin, gap.size());
}

/// The ranks with the same part of a unit.
GroupAxis replicas(const Query& q) { return q.unit().sharded ? GroupAxis::replicate : GroupAxis::world; }

using Run = void(const Running&);
using AmountOf = Amount(const Query&);
using Step = void (*)(GradientStates&, const Operation&);

constexpr Kind row(std::string_view name, Subject subject, std::span<const OperandSpec> operands, Collective collective,
                   Run run, AmountOf amount, Step follow) {
  return {.name = name,
          .part = collective == Collective::all_gather ? UpdatePart::gather : UpdatePart::reduce,
          .subject = subject,
          .operands = operands,
          .run = run,
          .cost = nullptr,
          .amount = amount,
          .follow = follow,
          .drawing = Drawing::as_transfer,
          .letter = "GRA"[static_cast<int>(collective)],
          .collective = collective};
}

void reduce_scatter_with_gaps(const Running& r) {
  clear_gaps(r, r.op.operands[0].place);
  reduce_scatter(r);
}
void all_reduce_with_gaps(const Running& r) {
  const Location& place = r.op.operands[0].place;
  if (place == r.rank.plan.at_work(r.rank.plan.whole_gradients[static_cast<std::size_t>(r.op.unit)])) clear_gaps(r, place);
  all_reduce(r);
}

/// Keeps this rank's sum before it is replaced by that of all ranks.
void all_reduce_loss_of_rank(const Running& r) {
  r.stream.copy(r.at(own_loss), r.at(loss), sizeof(LossSum));
  all_reduce(r);
}

/// Sums the gradients of all ranks' outputs over the ranks, and adds this rank's part to the gradient of its outputs, in fp32.
void scatter_outputs_of_all(const Running& r) {
  reduce_scatter(r);
  float* const part = r.at<float>(gathered_dx);
  if (r.rank.sizes.type == DType::f32) return kernels::add(r.stream, r.at<float>(dx), part, r.op.count);
  with_element(r.rank.sizes.type, [&]<class E>() {
    float* const own = r.at<float>(all_dx);  // its content is undefined now
    kernels::convert(r.stream, own, r.at<const E>(dx), r.op.count);
    kernels::add(r.stream, own, part, r.op.count);
    kernels::convert(r.stream, r.at<E>(dx), static_cast<const float*>(own), r.op.count);
  });
}

Amount of_outputs(const Query& q) { return {q.sizes.outputs(), q.sizes.type, DType::f32, GroupAxis::world}; }
Amount of_targets(const Query& q) { return {q.sizes.targets / sizeof(float), DType::f32, DType::f32, GroupAxis::world}; }
Amount of_gradient_of_outputs(const Query& q) { return {q.sizes.outputs(), DType::f32, DType::f32, GroupAxis::world}; }
Amount of_parameters(const Query& q) { return {q.shard_numel(), q.unit().types.parameter}; }
Amount of_whole_gradient(const Query& q) { return {q.shard_numel(), DType::f32, q.unit().types.reduce}; }
/// If the gradient is already the sum of a reduce-scatter, it is not rounded again.
Amount of_gradient(const Query& q) {
  return {q.shard_numel(), DType::f32, q.is_scattered() ? DType::f32 : q.unit().types.reduce, replicas(q)};
}
Amount of_directions(const Query& q) { return {.count = q.shard_numel()}; }
Amount of_directions_of_replicas(const Query& q) { return {.count = q.shard_numel(), .group = replicas(q)}; }
Amount of_statistics(const Query& q) { return {q.layout.statistics_words(q.op.round), DType::i64}; }
Amount of_squares(const Query&) { return {kernels::ExactSum::words, DType::i64}; }
Amount of_loss(const Query&) { return {LossSum::words, DType::i64, DType::f32, GroupAxis::world}; }

}  // namespace

namespace kinds {

using States = GradientStates;

constinit const Kind all_gather_parameters =
    row("all-gather", Subject::unit, of_all_gather_parameters, Collective::all_gather, all_gather, of_parameters, nullptr);
constinit const Kind all_gather_directions =
    row("all-gather directions", Subject::unit, of_all_gather_directions, Collective::all_gather, all_gather, of_directions,
        protocol<&States::gather_directions>);
constinit const Kind reduce_scatter_gradient =
    row("reduce-scatter", Subject::unit, of_reduce_scatter_gradient, Collective::reduce_scatter, reduce_scatter_with_gaps,
        of_whole_gradient, protocol<&States::reduce_scatter>);
constinit const Kind reduce_scatter_directions =
    row("reduce-scatter directions", Subject::unit, of_reduce_scatter_directions, Collective::reduce_scatter, reduce_scatter,
        of_directions, protocol<&States::return_directions>);
constinit const Kind all_reduce_gradient = row("all-reduce", Subject::unit, of_all_reduce_gradient, Collective::all_reduce,
                                               all_reduce_with_gaps, of_gradient, protocol<&States::all_reduce>);
constinit const Kind all_reduce_directions =
    row("all-reduce directions", Subject::unit, of_all_reduce_directions, Collective::all_reduce, all_reduce,
        of_directions_of_replicas, protocol<&States::sum_directions>);
constinit const Kind all_reduce_statistics =
    row("all-reduce statistics", Subject::nothing, of_all_reduce_statistics, Collective::all_reduce, all_reduce, of_statistics,
        protocol<&States::sum_statistics>);
constinit const Kind all_reduce_squares = row("all-reduce squares", Subject::nothing, of_all_reduce_squares,
                                              Collective::all_reduce, all_reduce, of_squares, protocol<&States::sum_squares>);
constinit const Kind all_reduce_loss = row("all-reduce loss", Subject::nothing, of_all_reduce_loss, Collective::all_reduce,
                                           all_reduce_loss_of_rank, of_loss, protocol<&States::sum_loss>);

constinit const Kind gather_outputs =
    row("gather outputs", Subject::head, of_gather_outputs, Collective::all_gather, all_gather, of_outputs, nullptr);
constinit const Kind gather_targets =
    row("gather targets", Subject::head, of_gather_targets, Collective::all_gather, all_gather, of_targets, nullptr);
constinit const Kind scatter_outputs = row("scatter gradients of outputs", Subject::head, of_scatter_outputs,
                                           Collective::reduce_scatter, scatter_outputs_of_all, of_gradient_of_outputs, nullptr);

/// Does no work. The next operation that writes to the slot waits for it.
constinit const Kind release = {.name = "release",
                                .part = UpdatePart::other,
                                .subject = Subject::unit,
                                .operands = of_release,
                                .run = [](const Running&) {},
                                .cost = nullptr};

}  // namespace kinds

}  // namespace fsdp
