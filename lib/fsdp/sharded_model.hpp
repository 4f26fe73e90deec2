// A model, its layout over the ranks, the plan of its steps, and, once allocated, the executor that runs them: what training,
// evaluation, generation and benchmarks have in common.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "fsdp/executor.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"
#include "nn/transformer.hpp"

namespace fsdp {

struct ShardingOptions {
  std::string strategy = "full";
  int shard_group_size = 0;  // of the hybrid strategies; 0: the ranks of a node
  WrapPolicy wrap = {};
  ParameterPatterns patterns = {};
  BatchShape batch = {};  // of one micro-batch on one rank
  UnitTypes types = {};   // the parameters' is that of activations, too
  PlanOptions plan = {};  // optimizer_state_type is filled in by plan_sharding()
  OptimizerOptions optimizer = {};
};

/// Throws UserError if these do not go together, the same on every rank.
void check_sharding(const Model& model, const ShardingOptions& options, int world_size);
void check_sharding(const TransformerConfig& config, const ShardingOptions& options, int world_size);

/// What a rank does and holds; nothing in it depends on which rank.
struct ShardedPlan {
  Layout layout;
  Plan plan;
};
/// A pure function, for a world of mesh.shard x mesh.replicate ranks; options have passed check_sharding(). `warnings` gets
/// what is allowed but costly.
ShardedPlan plan_sharding(const Model& model, const ShardingOptions& options, MeshShape mesh,
                          std::vector<std::string>* warnings = nullptr);

class ShardedModel {
 public:
  /// Computes layout and plan, for the device that the model is for, which need not be there; allocates nothing. Collective
  /// over world, which must outlive this. Throws UserError.
  ShardedModel(std::shared_ptr<const Model> model, const ShardingOptions& options, Communicator& world);
  ShardedModel(TransformerConfig config, const ShardingOptions& options, Communicator& world,
               const DeviceTraits& device = kernels::traits_of_cpu());
  ShardedModel(const ShardedModel&) = delete;

  /// Takes all memory of the run. Collective over world; all ranks throw CollectiveError if one has too little, or if its
  /// kernels have more threads (kernels::threads()) than the model was made for.
  /// `comm` says how memory of GPUs goes (Mesh::use_device).
  Executor& allocate(Device& device, ExecutorOptions options = {}, const CommOptions& comm = {});
  /// Only after allocate().
  Executor& executor() { return *executor_; }

  const Model& model() const { return *model_; }
  /// Only of one that was made of a configuration.
  const Transformer& transformer() const;
  const Layout& layout() const { return planned_.layout; }
  const Plan& plan() const { return planned_.plan; }
  const Mesh& mesh() const { return mesh_; }
  /// What is allowed but costly.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const Placement& placement() const { return placement_; }
  /// This rank's index on the shard axis.
  int shard() const { return mesh_.shard->rank(); }

 private:
  ShardingOptions options_;
  const Placement& placement_;
  Communicator& world_;
  std::shared_ptr<const Model> model_;
  const Transformer* transformer_ = nullptr;  // model_, where it is one that was made here
  Mesh mesh_;
  std::vector<std::string> warnings_;
  ShardedPlan planned_;
  std::optional<Executor> executor_;
};

}  // namespace fsdp
