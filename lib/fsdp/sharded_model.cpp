#include "fsdp/sharded_model.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

/// Above it, a plan would be slow to make and large itself.
constexpr std::size_t most_block_passes = std::size_t{1} << 17;

Mesh make_mesh_for(const Placement& placement, Communicator& world) {
  const MeshShape shape = mesh_shape(placement, world.size());
  return make_mesh(world, shape.shard, shape.replicate);
}

ShardingOptions completed(ShardingOptions options, const TransformerConfig& config) {
  check_sharding(config, options);
  if (options.plan.training) options.plan.optimizer_states = adamw_states;
  return options;
}

}  // namespace

void check_sharding(const TransformerConfig& config, const ShardingOptions& options) {
  config.validate();
  find_placement(options.strategy);
  if (options.plan.micro_batches * config.layers > most_block_passes)
    throw UserError(
        format("{} micro-batches of {} blocks make an update too long ({} block passes, at most {}) lower --update-freq and "
               "raise --batch-size",
               options.plan.micro_batches, config.layers, options.plan.micro_batches * config.layers, most_block_passes));
  if (options.batch.T > config.max_positions)
    throw UserError(format("sequences of {} tokens are longer than the model's {} positions; lower --tokens-per-sample",
                           options.batch.T, config.max_positions));
}

ShardedModel::ShardedModel(TransformerConfig config, const ShardingOptions& options, Communicator& world)
    : options_(completed(options, config)),
      placement_(find_placement(options.strategy)),
      world_(world),
      model_(std::move(config)),
      mesh_(make_mesh_for(placement_, world)),
      layout_(model_.parameters(), options_.wrap, mesh_.shard->size()),
      plan_(build_plan(layout_, placement_, model_sizes(model_, options_.batch), options_.plan)) {}

Executor& ShardedModel::allocate(Device& device) {
  return executor_.emplace(model_, layout_, plan_, options_.batch, options_.adamw, device, mesh_, world_);
}

}  // namespace fsdp
