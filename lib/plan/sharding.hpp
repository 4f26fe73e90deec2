// The options of sharding, and the layout and plan that follow from them.
#pragma once

#include <string>
#include <vector>

#include "comm/mesh.hpp"
#include "nn/transformer.hpp"
#include "optim/optimizer.hpp"
#include "plan/layout.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

struct ShardingOptions {
  std::string strategy = "full";
  int shard_group_size = 0;  // for hybrid strategies; 0: the number of ranks on a node
  WrapPolicy wrap = {};
  ParameterPatterns patterns = {};
  BatchShape batch = {};                // of one micro-batch on one rank
  std::size_t evaluated_sequences = 0;  // of an evaluation on one rank; 0: batch.B
  UnitTypes types = {};                 // `parameter` is also the type of activations
  PlanOptions plan = {};                // optimizer_state_type is filled in by plan_sharding()
  OptimizerOptions optimizer = {};

  /// The batch of an evaluation.
  BatchShape evaluated() const { return {evaluated_sequences > 0 ? evaluated_sequences : batch.B, batch.T}; }
};

/// Throws UserError if the options contradict each other. The result is the same on every rank.
void check_sharding(const Model& model, const ShardingOptions& options, int world_size);
void check_sharding(const TransformerConfig& config, const ShardingOptions& options, int world_size);

/// The layout and the plan. They are the same on every rank.
struct ShardedPlan {
  Layout layout;
  Plan plan;
};
/// Pure function, for a world of mesh.shard x mesh.replicate ranks. The options must have passed check_sharding(). `warnings`
/// receives options that are allowed but costly.
ShardedPlan plan_sharding(const Model& model, const ShardingOptions& options, MeshShape mesh,
                          std::vector<std::string>* warnings = nullptr);

}  // namespace fsdp
