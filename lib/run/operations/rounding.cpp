// Conversions between fp32 and the 16-bit types of kept state and computation.
#include "plan/check/gradient_states.hpp"
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

constexpr OperandSpec of_round[] = {{master, reads}, {part, overwrites}};
constexpr OperandSpec of_upcast_gradient[] = {{kept_gradient, reads}, {gradient, overwrites}};
constexpr OperandSpec of_upcast_master[] = {{kept_master, reads}, {master, overwrites}};
constexpr OperandSpec of_round_whole_gradient[] = {{whole_gradient, changes}, {kept_whole_gradient, accumulates}};
constexpr OperandSpec of_round_gradient[] = {{gradient, changes}, {kept_gradient, accumulates}};
constexpr OperandSpec of_round_whole_and_square[] = {
    {whole_gradient, consumes}, {kept_whole_gradient, accumulates}, {sums, changes}};
constexpr OperandSpec of_round_and_square[] = {{gradient, consumes}, {kept_gradient, accumulates}, {sums, changes}};
constexpr OperandSpec of_round_master[] = {{master, changes}, {kept_master, overwrites}};

Amount of_kept_gradient(const Query& q) { return {q.shard_numel(), q.unit().types.gradient}; }
Amount of_kept_whole_gradient(const Query& q) { return {q.unit().padded_numel, q.unit().types.gradient}; }
Amount of_kept_master(const Query& q) { return {q.shard_numel(), q.unit().types.master}; }

/// The bytes of `wide` passes over the fp32 values and of `narrow` passes over the 16-bit ones.
Cost cost_of_passes(std::size_t wide, std::size_t narrow, const Operation& op) {
  return {.memory_bytes = static_cast<double>(wide * op.count * sizeof(float) + narrow * op.bytes())};
}
Cost upcast_cost(const Operation& op, const Costing&) { return cost_of_passes(1, 1, op); }
/// Reads and writes the fp32 values, and writes the 16-bit ones; reads these, too, if it adds to them.
Cost rounding_cost(const Operation& op, const Costing&) { return cost_of_passes(2, op.accumulate ? 2 : 1, op); }
/// The same, but does not write the fp32 values.
Cost rounding_and_squares_cost(const Operation& op, const Costing&) { return cost_of_passes(1, op.accumulate ? 2 : 1, op); }

/// A part of the noise's random key, so that each sum of a gradient in an update is rounded with different noise.
std::uint32_t time_of(const Operation& op) { return static_cast<std::uint32_t>(2 * op.micro_batch + (op.accumulate ? 1 : 0)); }

/// The noise of an element depends on its position in its parameter, not on the rank that holds it. If the operation has sums,
/// the squares of the rounded values are added to them.
void round_range(const Running& r, OperandName wide, OperandName kept, RandomSite site, std::uint32_t time,
                 std::size_t parameter, Range range, std::size_t offset) {
  auto* const all = r.counts_unit() ? r.at<UpdateSums>(sums) : nullptr;
  kernels::round_at_random(r.stream, r.at<bf16>(kept) + offset, r.at<float>(wide) + offset, range.size(),
                           kernels::rounding_noise(site, r.rank.optimizer.seed, r.scalars.update, parameter, range.begin, time),
                           r.write(), all ? &all->squares : nullptr);
}

void round_shard(const Running& r, OperandName wide, OperandName kept, RandomSite site, std::uint32_t time) {
  for (const OptimizerSlice& slice : r.parts().slices)
    round_range(r, wide, kept, site, time, slice.parameter, slice.range, slice.offset);
}

void round_part(const Running& r) { round_shard(r, gradient, kept_gradient, RandomSite::gradient_sums, time_of(r.op)); }

/// Sets the gaps between parameters to zero, so that they add nothing to sums.
void round_whole(const Running& r) {
  const Unit& unit = r.unit();
  for (const Range gap : unit.gaps) kernels::fill_zero(r.stream, r.at<float>(whole_gradient) + gap.begin, gap.size());
  for (std::size_t i = 0; i < unit.parameters.size(); ++i)
    round_range(r, whole_gradient, kept_whole_gradient, RandomSite::gradient_sums, time_of(r.op), unit.parameters[i],
                {0, r.parts().tensors[i].numel}, unit.offsets[i]);
}

/// Conversions of state that is kept in bf16.
constexpr Kind row(std::string_view name, std::span<const OperandSpec> operands, void run(const Running&),
                   Cost cost(const Operation&, const Costing&), Amount amount(const Query&),
                   void follow(GradientStates&, const Operation&)) {
  return {.name = name,
          .part = UpdatePart::rounding,
          .subject = Subject::unit,
          .operands = operands,
          .run = run,
          .cost = cost,
          .amount = amount,
          .follow = follow};
}

}  // namespace

namespace kinds {

constinit const Kind round = {.name = "round",
                              .part = UpdatePart::other,
                              .subject = Subject::unit,
                              .operands = of_round,
                              .run =
                                  [](const Running& r) {
                                    with_element(r.op.type, [&]<class E>() {
                                      if constexpr (!std::is_same_v<E, float>)
                                        kernels::convert(r.stream, r.at<E>(part), r.at<float>(master), r.op.count);
                                    });
                                  },
                              .cost = upcast_cost,
                              .amount = [](const Query& q) -> Amount {
                                return {q.shard_numel(), q.unit().types.parameter};
                              }};

constinit const Kind upcast_gradient = row(
    "upcast gradient", of_upcast_gradient,
    [](const Running& r) { kernels::convert(r.stream, r.at<float>(gradient), r.at<bf16>(kept_gradient), r.op.count); },
    upcast_cost, of_kept_gradient, protocol<&GradientStates::upcast_gradient>);

constinit const Kind upcast_master = row(
    "upcast parameters", of_upcast_master,
    [](const Running& r) { kernels::convert(r.stream, r.at<float>(master), r.at<bf16>(kept_master), r.op.count); }, upcast_cost,
    of_kept_master, protocol<&GradientStates::upcast_master>);

constinit const Kind round_whole_gradient =
    row("round whole gradient at random", of_round_whole_gradient, round_whole, rounding_cost, of_kept_whole_gradient,
        protocol<&GradientStates::keep_gradient>);

constinit const Kind round_gradient = row("round gradient at random", of_round_gradient, round_part, rounding_cost,
                                          of_kept_gradient, protocol<&GradientStates::keep_gradient>);

constinit const Kind round_whole_gradient_and_square =
    row("round whole gradient at random, squares", of_round_whole_and_square, round_whole, rounding_and_squares_cost,
        of_kept_whole_gradient, protocol<&GradientStates::keep_and_square>);

constinit const Kind round_gradient_and_square =
    row("round gradient at random, squares", of_round_and_square, round_part, rounding_and_squares_cost, of_kept_gradient,
        protocol<&GradientStates::keep_and_square>);

constinit const Kind round_master = row(
    "round parameters at random", of_round_master,
    [](const Running& r) { round_shard(r, master, kept_master, RandomSite::master_weights, 0); }, rounding_cost, of_kept_master,
    protocol<&GradientStates::keep_master>);

}  // namespace kinds

}  // namespace fsdp
