// The table of operand names: the place of an operand in the plan, its size, and its expected content.
#include <algorithm>

#include "base/error.hpp"
#include "plan/kind.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using Place = std::optional<Home>;

std::size_t u_of(const Query& q) { return static_cast<std::size_t>(q.op.unit); }
std::size_t shard_bytes(const Query& q, DType type) { return q.shard_numel() * size_of(type); }
std::size_t whole_bytes(const Query& q, DType type) { return q.unit().padded_numel * size_of(type); }
Place there(const Query& q, const Location& place, std::size_t bytes) { return Home{q.plan.at_work(place), bytes}; }
Place buffer(const Query& q, BufferId id) {
  if (id < 0) return {};
  return Home{id, q.plan.buffers[static_cast<std::size_t>(id)].bytes};
}
template <BufferId Plan::*id>
Place of_plan(const Query& q) {
  return buffer(q, q.plan.*id);
}
template <BufferId Plan::*id, std::size_t ModelSizes::*bytes>
Place of_plan(const Query& q) {
  return q.plan.*id < 0 ? Place() : Home{q.plan.*id, q.sizes.*bytes};
}
template <BufferId Plan::*id>
Place sums_of_plan(const Query& q) {
  return Home{q.plan.*id, sizeof(UpdateSums)};
}
/// The operand may be in any buffer, with this role if one is given.
Place anywhere(std::size_t bytes, std::optional<BufferRole> role = {}) { return Home{{}, bytes, role}; }
Place part_of_gradient(const Query& q, const std::vector<Location>& places, DType type) {
  return there(q, places[u_of(q)], shard_bytes(q, type));
}

namespace home {
Place tables(const Query& q) { return q.sizes.tables > 0 ? of_plan<&Plan::tables>(q) : Place(); }
Place activation(const Query& q, int stage) {
  return anywhere(q.sizes.activations[static_cast<std::size_t>(stage)], BufferRole::activations);
}
/// All stages share one buffer, with the size of the largest gradient.
Place gradient_of_activations(const Query& q) {
  return anywhere(*std::max_element(q.sizes.activations.begin(), q.sizes.activations.end()), BufferRole::activations);
}
Place weights(const Query& q) {
  if (q.index >= q.units.size()) return {};
  const std::size_t u = q.units[q.index];
  const Unit& unit = q.layout.units()[u];
  return there(q, q.plan.whole_parameters[u], unit.padded_numel * size_of(unit.types.parameter));
}
}  // namespace home
/// The index-th trained unit of the stage.
std::optional<std::size_t> trained(const Query& q) {
  std::size_t left = q.index;
  for (const std::size_t u : q.units)
    if (q.layout.units()[u].trainable && left-- == 0) return u;
  return {};
}
namespace home {
Place gradients(const Query& q) {
  const auto u = trained(q);
  return u ? there(q, q.plan.whole_gradients[*u], q.layout.units()[*u].padded_numel * sizeof(float)) : Place();
}
Place saved(const Query& q) {
  const auto b = static_cast<std::size_t>(q.op.block);
  const bool in_pieces = b < q.plan.blocks_in_pieces && !q.sizes.saved_in_pieces.empty();  // a smaller batch may be one piece
  const auto& sizes = in_pieces ? q.sizes.saved_in_pieces : q.plan.cheap >= 0 ? q.sizes.kept : q.sizes.saved;
  return anywhere(sizes[b], BufferRole::activations);
}
Place words_of_round(const Query& q, int round) {
  const Range range = q.layout.statistics(u_of(q), round);
  return Home{{q.plan.statistics[static_cast<std::size_t>(round)], range.begin * sizeof(std::int64_t)},
              range.size() * sizeof(std::int64_t)};
}
Place words(const Query& q, int rounds) {
  const int round = static_cast<int>(q.index);
  return round < rounds ? words_of_round(q, round) : Place();
}
Place states(const Query& q) {
  const auto& of_unit = q.plan.optimizer_state[u_of(q)];
  if (q.index >= of_unit.size()) return {};
  const BufferId id = of_unit[q.index];
  return there(q, id, q.plan.buffers[static_cast<std::size_t>(id)].bytes);
}
Place sum(const Query& q) {
  if (q.plan.sums_in_a_tree)
    return anywhere(shard_bytes(q, DType::f32));  // any partial sum; GradientStates checks that it is the right one
  return part_of_gradient(q, q.plan.wide_gradients, DType::f32);
}
/// `bytes`: of one rank.
Place rows_of_all(const Query& q, BufferId id, std::size_t bytes) {
  return id < 0 ? Place() : Home{id, q.sizes.gathered_from * bytes};
}
Place matrices(const Query& q) {
  return q.is_scattered() ? there(q, q.plan.whole_gradients[u_of(q)], whole_bytes(q, DType::f32))
                          : anywhere(whole_bytes(q, DType::f32), BufferRole::scratch);
}

}  // namespace home

template <OperandName name>
Content of_batch(const Query& q) {
  return {name, -1, q.op.micro_batch};
}
/// The content of activations: the output of the previous stage (given_before) or of this stage (given), and the gradients of
/// these outputs.
Content given_before(const Query& q) { return {x_out, q.op.stage - 1, q.op.micro_batch}; }
Content given(const Query& q) { return {x_out, q.op.stage, q.op.micro_batch}; }
Content gradient_of_given(const Query& q) { return {dx, q.op.stage, q.op.micro_batch}; }
Content gradient_of_given_before(const Query& q) { return {dx, q.op.stage - 1, q.op.micro_batch}; }
/// With a loss that sees all ranks, the head leaves a part of the gradient, and scatter_outputs completes it.
Content gradient_before(const Query& q) {
  if (q.op.kind == &kinds::scatter_outputs) return {gathered_dx, q.op.stage - 1, q.op.micro_batch};
  return gradient_of_given(q);
}
Content gradient_after(const Query& q) {
  const bool is_head = q.op.kind == &kinds::head || q.op.kind == &kinds::head_for_inputs;
  if (is_head && q.plan.all_dx >= 0) return {gathered_dx, q.op.stage - 1, q.op.micro_batch};
  return gradient_of_given_before(q);
}
template <OperandName name>
Content of_stage(const Query& q) {
  return {name, q.op.stage, q.op.micro_batch};
}
template <OperandName name>
Content of_unit(const Query& q) {
  return {name, q.op.unit, -1};
}
Content weights_of_unit(const Query& q) { return {weights, static_cast<int>(q.units[q.index]), -1}; }
Content gradient_of_unit(const Query& q) { return {gradient, static_cast<int>(trained(q).value_or(0)), -1}; }
Content matrices_of_unit(const Query& q) { return {q.is_scattered() ? matrices : direction, q.op.unit, -1}; }

constexpr OperandInfo rows_of_names[] = {
    {tokens, "the tokens on the host", of_plan<&Plan::tokens>},
    {step, "the step of decoding", of_plan<&Plan::step>},
    {losses, "the losses", of_plan<&Plan::losses, &ModelSizes::losses>},
    {logits, "the logits", of_plan<&Plan::logits>},
    {report, "the report", sums_of_plan<&Plan::report>},
    {own_loss, "this rank's loss",
     [](const Query& q) -> Place {
       return Home{{q.plan.report, sizeof(UpdateSums)}, sizeof(LossSum)};
     }},
    {inputs, "the inputs", of_plan<&Plan::inputs, &ModelSizes::inputs>, of_batch<inputs>},
    {targets, "the targets", of_plan<&Plan::targets, &ModelSizes::targets>, of_batch<targets>},
    {positions, "the positions in documents", of_plan<&Plan::positions, &ModelSizes::inputs>, of_batch<positions>},
    {rows, "the rows of the step", of_plan<&Plan::rows>, of_batch<rows>},
    {tables, "the tables", home::tables},
    {x, "its input", [](const Query& q) { return home::activation(q, q.op.stage - 1); }, given_before},
    {x_out, "its output", [](const Query& q) { return home::activation(q, q.op.stage); }, given},
    // A stage replaces the gradient of its output by that of its input.
    {dx, "the gradient of activations", home::gradient_of_activations, gradient_before, gradient_after},
    {saved, "its saved activations", home::saved, of_stage<saved>},
    {cheap, "the cheap part of its saved activations", of_plan<&Plan::cheap>, of_stage<cheap>},
    {scratch, "scratch", of_plan<&Plan::scratch>},
    {cache, "the cache of its block",
     [](const Query& q) { return buffer(q, q.plan.caches.at(static_cast<std::size_t>(q.op.block))); }},
    {weights, "the whole parameters", home::weights, weights_of_unit, nullptr, true},
    {gradients, "the gradient", home::gradients, gradient_of_unit, nullptr, true},
    {sums, "the sums", sums_of_plan<&Plan::sums>},
    {squares, "the sum of squares",
     [](const Query& q) -> Place {
       return Home{{q.plan.sums, offsetof(UpdateSums, squares)}, sizeof(UpdateSums::squares)};
     }},
    {loss, "the sum of losses",
     [](const Query& q) -> Place {
       return Home{{q.plan.sums, offsetof(UpdateSums, loss)}, sizeof(UpdateSums::loss)};
     }},
    {part, "this rank's shard",
     [](const Query& q) { return there(q, q.plan.parameters[u_of(q)], shard_bytes(q, q.unit().types.parameter)); }},
    {master, "the fp32 parameters",
     [](const Query& q) { return there(q, q.plan.wide_master[u_of(q)], shard_bytes(q, DType::f32)); }, of_unit<master>},
    {kept_master, "the kept parameters",
     [](const Query& q) { return there(q, q.plan.master[u_of(q)], shard_bytes(q, q.unit().types.master)); }},
    {whole_gradient, "the whole gradient",
     [](const Query& q) { return there(q, q.plan.whole_gradients[u_of(q)], whole_bytes(q, DType::f32)); }, of_unit<gradient>},
    {gradient, "the gradient", [](const Query& q) { return part_of_gradient(q, q.plan.wide_gradients, DType::f32); },
     of_unit<gradient>},
    {kept_whole_gradient, "the kept whole gradient",
     [](const Query& q) { return there(q, q.plan.kept_whole_gradients[u_of(q)], whole_bytes(q, q.unit().types.gradient)); }},
    {kept_gradient, "the kept gradient",
     [](const Query& q) { return part_of_gradient(q, q.plan.gradients, q.unit().types.gradient); }},
    {sum, "its sum", home::sum, of_unit<gradient>},
    {from, "the sum that it adds", [](const Query& q) { return anywhere(shard_bytes(q, DType::f32)); }, of_unit<gradient>},
    {to, "its sum", [](const Query& q) { return anywhere(shard_bytes(q, DType::f32)); }, of_unit<gradient>},
    {states, "a state", home::states, nullptr, nullptr, true},
    {words, "the statistics", [](const Query& q) { return home::words(q, q.unit().rule->statistics.rounds); }, nullptr, nullptr,
     true},
    {words_before, "the statistics", [](const Query& q) { return home::words(q, q.op.round); }, nullptr, nullptr, true},
    {words_out, "its statistics", [](const Query& q) { return home::words_of_round(q, q.op.round); }},
    {all_words, "the statistics of its round",
     [](const Query& q) { return buffer(q, q.plan.statistics.at(static_cast<std::size_t>(q.op.round))); }},
    {direction, "the directions", [](const Query& q) { return anywhere(shard_bytes(q, DType::f32), BufferRole::scratch); },
     of_unit<direction>},
    {matrices, "the matrices", home::matrices, matrices_of_unit},
    {matrix_scratch, "scratch for matrices", of_plan<&Plan::matrix_scratch>},
    {average, "the average of its parameters",
     [](const Query& q) -> Place {
       if (q.plan.averages.empty()) return {};
       return there(q, q.plan.averages[u_of(q)], shard_bytes(q, DType::f32));
     }},
    {stored, "the offloaded buffer", [](const Query&) { return anywhere(0); }},
    {slot, "its slot", [](const Query&) { return anywhere(0); }},
    {all_outputs, "the outputs of all ranks",
     [](const Query& q) { return home::rows_of_all(q, q.plan.all_outputs, q.sizes.activations.back()); },
     of_batch<all_outputs>},
    {all_targets, "the targets of all ranks",
     [](const Query& q) { return home::rows_of_all(q, q.plan.all_targets, q.sizes.targets); }, of_batch<all_targets>},
    {all_dx, "the gradient of all ranks' outputs",
     [](const Query& q) { return home::rows_of_all(q, q.plan.all_dx, q.sizes.outputs() * sizeof(float)); }, of_batch<all_dx>},
    {gathered_dx, "its part of the gradient of all ranks' outputs",
     [](const Query& q) -> Place {
       return q.plan.gathered_dx < 0 ? Place() : Home{q.plan.gathered_dx, q.sizes.outputs() * sizeof(float)};
     }},
    {in_layers, "memory for what its layer gathers", of_plan<&Plan::in_layers, &ModelSizes::gathered_in_layers>},
};

}  // namespace

const OperandInfo& info_of(OperandName name) {
  const OperandInfo& row = rows_of_names[static_cast<std::size_t>(name)];
  expect(row.name == name, "the rows are in the order of the names");
  return row;
}

}  // namespace fsdp
