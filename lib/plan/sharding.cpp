#include "plan/sharding.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/check/plan_check.hpp"

namespace fsdp {

namespace {

/// The limit for micro-batches x blocks: with more, the plan of an update is large and takes long to build.
constexpr std::size_t most_block_passes = std::size_t{1} << 17;

}  // namespace

void check_sharding(const TransformerConfig& config, const ShardingOptions& options, int world_size) {
  check_sharding(Transformer(config), options, world_size);
}

void check_sharding(const Model& model, const ShardingOptions& options, int world_size) {
  const Placement& placement = find_placement(options.strategy);
  if (placement.axis == ShardAxis::group && options.shard_group_size > 0)
    mesh_shape(placement, world_size, options.shard_group_size);
  const std::vector<Parameter>& parameters = model.parameters();
  wrap_parameters(parameters, options.wrap, options.patterns);
  settings_of(options.optimizer, parameters);
  if (options.plan.invariant && (world_size & (world_size - 1)) != 0)
    throw UserError(
        format("{} ranks are not a power of two (only powers of two have the same order of sums over ranks and micro-batches); "
               "choose 1, 2, 4, 8, ... ranks, or leave out `same bits at any number of ranks`",
               world_size));
  if (options.plan.invariant && model.sees_all_ranks)
    throw UserError(
        "the loss sees the rows of all ranks, which are others at another number of ranks, so `same bits at any number of "
        "ranks` cannot be promised; leave it out, or choose another loss");
  if (options.plan.invariant && model.layers_depend_on_ranks)
    throw UserError(
        "layers have state or gather numbers of all ranks, and both differ at another number of ranks, so `same bits at any "
        "number of ranks` cannot be promised; leave it out, or choose other layers");
  if (options.plan.micro_batches * model.blocks.size() > most_block_passes)
    throw UserError(format(
        "{} micro-batches of {} blocks make an update too long ({} block passes; the limit is {}); raise "
        "`micro-batch`, and lower `micro-batches per update` if you gave it",
        options.plan.micro_batches, model.blocks.size(), options.plan.micro_batches * model.blocks.size(), most_block_passes));
  if (options.plan.recomputed_blocks > model.blocks.size())
    throw UserError(format("{} blocks cannot be recomputed (the model has {}); lower `number of recomputed blocks`",
                           options.plan.recomputed_blocks, model.blocks.size()));
  model.check_batch(options.batch, options.types.parameter, options.plan.cache);
  if (const PositionTables* const tables = model.tables;
      options.plan.documents && tables && tables->table_class(options.batch.T) != tables->table_class(1))
    throw UserError(format(
        "`attention within documents` does not work with sequences of {} tokens (the model's rotary frequencies depend on "
        "the length, and documents of a sequence differ in length); lower `sequence length`, or leave it out",
        options.batch.T));
}

ShardedPlan plan_sharding(const Model& model, const ShardingOptions& options, MeshShape mesh,
                          std::vector<std::string>* warnings) {
  const Placement& placement = find_placement(options.strategy);
  const ModelSizes sizes = model.sizes(options.batch, options.types.parameter, options.plan.cache);
  const ModelSizes evaluated = model.sizes(options.evaluated(), options.types.parameter, options.plan.cache);
  PlanOptions plan_options = options.plan;
  plan_options.optimizer_state_type = options.optimizer.state_type;
  plan_options.reduces = mesh.shard * mesh.replicate > 1;
  ParameterPatterns patterns = options.patterns;
  patterns.rule_of = [&](const Parameter& parameter) -> const Rule& { return rule_of(options.optimizer, parameter); };
  Layout layout(model.parameters(), wrap_parameters(model.parameters(), options.wrap, patterns, warnings, model.stage_names),
                mesh.shard, options.types, model.stage_names);
  Plan plan = build_plan(layout, placement, sizes, plan_options, &evaluated);
  check_plan(plan, layout, placement, sizes, plan_options.micro_batches, &evaluated);
  return {std::move(layout), std::move(plan)};
}

}  // namespace fsdp
