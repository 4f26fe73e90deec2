// The plan as JSON and for drawings.
#include "fsdp-plan/explained_plan.hpp"

#include <nlohmann/json.hpp>

#include "plan/timeline.hpp"

namespace fsdp {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExplainedPlan::Tensor, name, shape, offset, elements)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExplainedPlan::Part, tensor, begin, end, at)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExplainedPlan::Unit, name, trained, shards, elements, padded, of_a_rank, parameter_bytes,
                                   fp32_copy_bytes, gradient_bytes, optimizer_state_bytes, tensors, shard_slices)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExplainedPlan::Buffer, name, role, bytes, on_host, whole_run)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExplainedPlan::Operation, title, kind, label, stream, micro_batch, unit, block, drawn_time,
                                   reads, writes, waits, activations, moved_bytes, begin_ms, end_ms)

namespace {

ExplainedPlan::Unit unit_of(const std::vector<Parameter>& parameters, const ShardedPlan& planned, std::size_t u) {
  const Plan& plan = planned.plan;
  const Unit& unit = planned.layout.units()[u];
  const auto bytes_of = [&](BufferId id) { return id < 0 ? 0 : plan.buffers[static_cast<std::size_t>(id)].bytes; };
  // If the optimizer updates the parameters without another copy, there is one buffer, which is counted as parameters.
  const bool copy = plan.master[u].buffer != plan.parameters[u].buffer;
  ExplainedPlan::Unit out{.name = unit.name,
                          .trained = unit.trainable,
                          .shards = static_cast<std::uint64_t>(unit.shards),
                          .elements = unit.numel,
                          .padded = unit.padded_numel,
                          .of_a_rank = planned.layout.shard_numel(u),
                          .parameter_bytes = bytes_of(plan.parameters[u].buffer),
                          .fp32_copy_bytes = copy ? bytes_of(plan.master[u].buffer) : 0,
                          .gradient_bytes = bytes_of(plan.gradients[u].buffer),
                          .optimizer_state_bytes = plan.averages.empty() ? 0 : bytes_of(plan.averages[u]),
                          .tensors = {},
                          .shard_slices = {}};
  for (const BufferId id : plan.optimizer_state[u]) out.optimizer_state_bytes += bytes_of(id);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& parameter = parameters[unit.parameters[i]];
    out.tensors.push_back(
        {parameter.name, {parameter.shape.begin(), parameter.shape.end()}, unit.offsets[i], numel(parameter.shape)});
  }
  for (int shard = 0; shard < unit.shards; ++shard) {
    out.shard_slices.emplace_back();
    for (const Slice& slice : planned.layout.slices(u, shard))
      out.shard_slices.back().push_back(
          {parameters[slice.parameter].name, slice.range.begin, slice.range.end, slice.shard_offset});
  }
  return out;
}

}  // namespace

ExplainedPlan explained_plan(const PlanTable& table) {
  const bool recomputing = recomputes(table.options);
  const ShardedPlan planned = plan_of_chosen(table, recomputing);
  const Plan& plan = planned.plan;
  ExplainedPlan out{.path = {},
                    .nodes = static_cast<std::uint64_t>(table.options.cluster.nodes),
                    .ranks_per_node = static_cast<std::uint64_t>(table.options.cluster.ranks_per_node),
                    .strategies = table.rows,
                    .chosen = table.chosen(),
                    .recomputing = recomputing,
                    .is_predicted = table.predicts(),
                    .micro_batches = table.options.train.sharding.plan.micro_batches,
                    .units = {},
                    .buffers = {},
                    .operations = {}};
  for (std::size_t u = 0; u < planned.layout.units().size(); ++u)
    out.units.push_back(unit_of(table.model->parameters(), planned, u));
  for (const PlanBuffer& buffer : plan.buffers)
    out.buffers.push_back(
        {buffer.name, std::string(name_of(buffer.role)), buffer.bytes, buffer.space->tier != Tier::device, !buffer.transient});
  const auto ids = [](const std::vector<Location>& places) {
    std::vector<BufferId> buffers;
    for (const Location& place : places) buffers.push_back(place.buffer);
    return buffers;
  };
  const std::vector<TaskTime> times = times_of_chosen(table, recomputing);
  std::size_t activations = 0;
  for (const Operation& op : plan.update) {
    for (const BufferId id : op.acquires) activations += plan.buffers[static_cast<std::size_t>(id)].bytes;
    const auto use = collective_of(op);
    out.operations.push_back({.title = title_of(op, planned.layout),
                              .kind = std::string(op.kind->name),
                              .label = drawn_label(op, planned.layout),
                              .stream = std::string(name_of(op.stream)),
                              .part = op.kind->part,
                              .micro_batch = op.micro_batch,
                              .unit = op.unit,
                              .block = op.block,
                              .drawn_time = drawn_time(op, planned.layout, table.model->block_numel()),
                              .reads = ids(reads_of(op)),
                              .writes = ids(writes_of(op)),
                              .waits = op.waits,
                              .activations = activations,
                              .moved_bytes = use ? use->whole_bytes(1) : 0});
    if (out.is_predicted) {
      const TaskTime& time = times.at(out.operations.size() - 1);
      out.operations.back().begin_ms = 1e3 * time.begin, out.operations.back().end_ms = 1e3 * time.end;
    }
    for (const BufferId id : op.frees) activations -= plan.buffers[static_cast<std::size_t>(id)].bytes;
  }
  return out;
}

nlohmann::json to_json(const ExplainedPlan& plan) {
  nlohmann::json json = {{"strategy", plan.chosen.placement->name},
                         {"shard", plan.chosen.mesh.shard},
                         {"replicate", plan.chosen.mesh.replicate},
                         {"recomputing", plan.recomputing},
                         {"units", plan.units},
                         {"buffers", plan.buffers},
                         {"operations", plan.operations}};
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    nlohmann::json& op = json["operations"][i];
    op["part"] = name_of(plan.operations[i].part);
    if (plan.operations[i].moved_bytes == 0) op.erase("moved_bytes");
    if (!plan.is_predicted) op.erase("begin_ms"), op.erase("end_ms");
  }
  return json;
}

}  // namespace fsdp
