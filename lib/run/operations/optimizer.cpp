// The operations of the optimizer on a rank's part of a unit: sums over whole tensors, work on whole matrices, updates.
#include "kernels/update_sums.hpp"
#include "plan/check/gradient_states.hpp"
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

bool follows_directions(const Query& q) { return q.unit().rule->whole.work != nullptr; }
bool follows_gradient(const Query& q) { return !follows_directions(q); }
bool is_rounded(const Query& q) { return q.unit().types.parameter != q.unit().types.master; }

constexpr OperandSpec statistics_operands[] = {{sums, reads},         {gradient, reads},       {master, reads},
                                               {words_before, reads}, {words_out, overwrites}, {states, changes}};
constexpr OperandSpec directions_operands[] = {{sums, reads}, {gradient, reads}, {direction, overwrites}, {states, changes}};
constexpr OperandSpec of_whole_matrices[] = {{sums, reads}, {matrices, changes}, {matrix_scratch, clobbers}};
constexpr OperandSpec of_optimizer[] = {{sums, reads},
                                        {gradient, reads, follows_gradient},
                                        {direction, reads, follows_directions},
                                        {words, reads},
                                        {master, changes},
                                        {part, changes, is_rounded},
                                        {states, changes}};
constexpr OperandSpec of_optimizer_16_bit[] = {
    {sums, reads}, {kept_gradient, reads}, {kept_master, changes}, {states, changes}};

constexpr OperandSpec of_average[] = {{sums, reads}, {master, reads}, {OperandName::average, changes}};

UnitMemory memory_of(const Running& r) {
  UnitMemory memory{.tensors = r.parts().tensors, .slices = r.parts().slices};
  memory.parameters = r.at<float>(master);
  memory.gradients = r.at<float>(gradient);
  memory.directions = r.at<float>(direction);
  memory.kept_parameters = r.at<bf16>(kept_master);
  memory.kept_gradients = r.at<bf16>(kept_gradient);
  if (auto* const copy = r.at<std::uint16_t>(part)) memory.copy = {copy, r.unit().types.parameter};
  for (std::size_t round = 0; round < memory.statistics.size(); ++round)
    memory.statistics[round] = r.at<std::int64_t>(r.op.kind == &kinds::statistics ? words_before : words, round);
  if (auto* const out = r.at<std::int64_t>(words_out)) memory.statistics[static_cast<std::size_t>(r.op.round)] = out;
  for (std::size_t k = 0; k < memory.states.size(); ++k) memory.states[k] = r.at<std::byte>(states, k);
  return memory;
}

OptimizerStep step_of(const Running& r) {
  return {r.scalars.update - r.scalars.state_began, r.scalars.learning_rate, &r.at<UpdateSums>(sums)->norm, r.scalars.update,
          r.op.micro_batch + 1};  // the optimizer runs in the last micro-batch
}

void update(const Running& r) { r.unit().rule->update(r.stream, memory_of(r), r.rank.optimizer, step_of(r)); }

/// Computes this rank's part of a unit's sums. Only one rank of the shard axis counts a unit that all of them hold whole.
void count_statistics(const Running& r) {
  const auto clear = [&] {
    kernels::fill_zero(r.stream, r.at<float>(words_out), r.op.count * sizeof(std::int64_t) / sizeof(float));
  };
  clear();
  r.unit().rule->statistics.count(r.stream, memory_of(r), r.rank.optimizer, step_of(r), r.op.round);
  if (!r.counts_unit()) clear();
}

/// Works on the matrices that this rank owns and zeroes the others, so that a sum over the ranks has each matrix once.
void work_on_matrices(const Running& r) {
  const Unit& unit = r.unit();
  const std::vector<int>& owners = r.rank.owners[static_cast<std::size_t>(r.op.unit)];
  float* const whole = r.at<float>(matrices);
  for (const Range gap : unit.gaps) kernels::fill_zero(r.stream, whole + gap.begin, gap.size());
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const UnitTensor& tensor = r.parts().tensors[i];
    float* const matrix = whole + unit.offsets[i];
    if (owners[i] == r.rank.mesh->world->rank())
      unit.rule->whole.work(r.stream, matrix, tensor.rows, tensor.columns, r.at<float>(matrix_scratch));
    else
      kernels::fill_zero(r.stream, matrix, tensor.numel);
  }
}

/// The memory traffic of an update of this rank's part, including sums over whole tensors. `number` is the type of parameter
/// and gradient. If parameters are gathered in another type than the master's, the traffic includes writing them.
Cost update_cost(const Operation& op, const Costing& costing, DType number) {
  const auto u = static_cast<std::size_t>(op.unit);
  const UnitTypes& types = costing.layout.units()[u].types;
  const Rule& rule = *costing.layout.units()[u].rule;
  std::size_t of_element = 0;
  for (const StateInfo& state : rule.states) of_element += state.extent == Extent::element;
  const std::size_t per_number =
      static_cast<std::size_t>(rule.passes.numbers) * size_of(number) +
      static_cast<std::size_t>(rule.passes.per_state) * of_element * size_of(costing.optimizer.state_type) +
      (types.parameter == types.master ? 0 : size_of(types.parameter));
  return {.memory_bytes = static_cast<double>(costing.layout.shard_numel(u) * per_number)};
}

Cost matrices_cost(const Operation& op, const Costing& costing) {
  const Unit& unit = costing.layout.units()[static_cast<std::size_t>(op.unit)];
  double flops = 0;
  for (const std::size_t p : unit.parameters)
    if (const Shape& shape = costing.layout.shape(p); shape.size() == 2) flops += unit.rule->whole.cost(shape[0], shape[1]);
  return {.fp32_flops = flops / costing.layout.shards()};
}

}  // namespace

namespace kinds {

constinit const Kind statistics = {
    .name = "statistics",
    .part = UpdatePart::optimizer,
    .subject = Subject::unit,
    .operands = statistics_operands,
    .run = count_statistics,
    .cost = nullptr,  // included in update_cost()
    .amount = [](const Query& q) -> Amount {
      return {.count = q.layout.statistics(static_cast<std::size_t>(q.op.unit), q.op.round).size()};
    },
    .follow = protocol<&GradientStates::count>,
    .drawing = Drawing::briefly,
    .letter = 'S'};

constinit const Kind directions = {
    .name = "directions",
    .part = UpdatePart::optimizer,
    .subject = Subject::unit,
    .operands = directions_operands,
    .run = [](const Running& r) { r.unit().rule->whole.prepare(r.stream, memory_of(r), r.rank.optimizer, step_of(r)); },
    .cost = nullptr,  // included in update_cost()
    .follow = protocol<&GradientStates::make_directions>,
    .drawing = Drawing::briefly,
    .letter = 'D'};

constinit const Kind whole_matrices = {.name = "whole matrices",
                                       .part = UpdatePart::optimizer,
                                       .subject = Subject::unit,
                                       .operands = of_whole_matrices,
                                       .run = work_on_matrices,
                                       .cost = matrices_cost,
                                       .follow = protocol<&GradientStates::work_on_matrices>,
                                       .drawing = Drawing::as_forward,
                                       .letter = 'W'};

constinit const Kind optimizer = {
    .name = "optimizer",
    .part = UpdatePart::optimizer,
    .subject = Subject::unit,
    .operands = of_optimizer,
    .run = update,
    .cost = [](const Operation& op, const Costing& costing) { return update_cost(op, costing, DType::f32); },
    .follow = protocol<&GradientStates::update>,
    .drawing = Drawing::briefly,
    .letter = 'O'};

constinit const Kind optimizer_16_bit = {
    .name = "optimizer in 16 bits",
    .part = UpdatePart::optimizer,
    .subject = Subject::unit,
    .operands = of_optimizer_16_bit,
    .run = update,
    .cost = [](const Operation& op, const Costing& costing) { return update_cost(op, costing, op.type); },
    .amount = [](const Query& q) -> Amount {
      return {q.shard_numel(), q.unit().types.master};
    },
    .follow = protocol<&GradientStates::update_in_16_bits>,
    .drawing = Drawing::briefly,
    .letter = 'O'};

constinit const Kind average = {
    .name = "average of parameters",
    .part = UpdatePart::optimizer,
    .subject = Subject::unit,
    .operands = of_average,
    .run =
        [](const Running& r) {
          kernels::move_average(r.stream, r.at<float>(OperandName::average), r.at<float>(master), r.op.count,
                                r.scalars.ema_decay, r.at<UpdateSums>(sums)->norm);
        },
    .cost = [](const Operation& op, const Costing&) -> Cost { return {.memory_bytes = 3.0 * static_cast<double>(op.bytes())}; },
    .amount = [](const Query& q) -> Amount { return {.count = q.shard_numel()}; },
    .follow = protocol<&GradientStates::average>};

}  // namespace kinds

}  // namespace fsdp
