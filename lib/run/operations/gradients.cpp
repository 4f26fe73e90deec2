// The operations on a rank's sums of gradients, up to the optimizer.
#include "kernels/exact_sum.hpp"
#include "kernels/update_sums.hpp"
#include "plan/check/gradient_states.hpp"
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

constexpr OperandSpec of_clear[] = {{whole_gradient, overwrites}};
constexpr OperandSpec of_sum_gradients[] = {{from, reads}, {to, accumulates}};
constexpr OperandSpec of_add_squares[] = {{gradient, reads}, {sums, changes}};
constexpr OperandSpec of_gradient_norm[] = {{sums, changes}, {report, overwrites}};
constexpr OperandSpec of_clip_values[] = {{sums, reads}, {gradient, changes}};

Amount of_shard(const Query& q) { return {.count = q.shard_numel()}; }
/// The cost of `n` passes over fp32 numbers.
Cost passes(double n, const Operation& op) { return {.memory_bytes = n * static_cast<double>(op.bytes())}; }

}  // namespace

namespace kinds {

constinit const Kind clear = {
    .name = "clear gradient",
    .part = UpdatePart::other,
    .subject = Subject::unit,
    .operands = of_clear,
    .run = [](const Running& r) { kernels::fill_zero(r.stream, r.at<float>(whole_gradient), r.op.count); },
    .cost = [](const Operation& op, const Costing&) { return passes(1, op); },
    .amount = [](const Query& q) -> Amount { return {.count = q.unit().padded_numel}; },
    .follow = protocol<&GradientStates::clear>};

constinit const Kind sum_gradients = {
    .name = "sum of gradients",
    .part = UpdatePart::other,
    .subject = Subject::unit,
    .operands = of_sum_gradients,
    .run =
        [](const Running& r) {
          if (r.op.accumulate)
            kernels::add(r.stream, r.at<float>(to), r.at<float>(from), r.op.count);
          else
            r.stream.copy(r.at(to), r.at(from), r.op.bytes());
        },
    .cost = [](const Operation& op, const Costing&) { return passes(op.accumulate ? 3 : 2, op); },
    .amount = of_shard,
    .follow = protocol<&GradientStates::sum_in_tree>};

constinit const Kind add_squares = {.name = "squares",
                                    .part = UpdatePart::optimizer,
                                    .subject = Subject::unit,
                                    .operands = of_add_squares,
                                    .run =
                                        [](const Running& r) {
                                          if (!r.counts_unit()) return;
                                          const auto add =
                                              r.unit().rule->is_of_state ? kernels::add_non_finite : kernels::add_squares;
                                          add(r.stream, r.at<UpdateSums>(sums)->squares, r.at<float>(gradient), r.op.count);
                                        },
                                    .cost = [](const Operation& op, const Costing&) { return passes(1, op); },
                                    .amount = of_shard,
                                    .follow = protocol<&GradientStates::take_squares>};

constinit const Kind gradient_norm = {.name = "gradient norm",
                                      .part = UpdatePart::optimizer,
                                      .subject = Subject::nothing,
                                      .operands = of_gradient_norm,
                                      .run =
                                          [](const Running& r) {
                                            auto* const all = r.at<UpdateSums>(sums);
                                            kernels::gradient_norm(r.stream, *all,
                                                                   {.loss_scale = r.scalars.loss_scale,
                                                                    .clip_norm = r.scalars.clip_norm,
                                                                    .tokens = r.scalars.tokens,
                                                                    .most_loss = r.scalars.most_loss,
                                                                    .most_norm = r.scalars.most_norm});
                                            r.stream.copy(r.at(report), all, sizeof(UpdateSums));
                                          },
                                      .cost = nullptr,
                                      .follow = protocol<&GradientStates::know_norm>,
                                      .drawing = Drawing::as_forward,
                                      .letter = 'N'};

/// Like torch.nn.utils.clip_grad_value_; runs after the norm and before the optimizer reads the gradient.
constinit const Kind clip_values = {.name = "clip values",
                                    .part = UpdatePart::optimizer,
                                    .subject = Subject::unit,
                                    .operands = of_clip_values,
                                    .run =
                                        [](const Running& r) {
                                          kernels::clip_values(r.stream, r.at<float>(gradient), r.op.count,
                                                               static_cast<float>(r.scalars.clip_value * r.scalars.loss_scale));
                                        },
                                    .cost = [](const Operation& op, const Costing&) { return passes(2, op); },
                                    .amount = of_shard,
                                    .follow =
                                        [](GradientStates& states, const Operation& op) {
                                          states.require_norm();
                                          states.require_unused(op);
                                          states.once(op);
                                        }};

}  // namespace kinds

}  // namespace fsdp
