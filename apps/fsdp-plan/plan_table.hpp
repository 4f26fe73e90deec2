// Plans of all strategies for a cluster, which need not exist: memory of a rank by part, bytes sent per update, and which of
// them fit. The numbers are the same as those of a run, since they come from the same layout, plan and list of operations; they
// need no ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/options.hpp"
#include "fsdp-plan/prediction.hpp"
#include "fsdp/plan.hpp"
#include "fsdp/sharded_model.hpp"
#include "fsdp/traffic.hpp"
#include "train/memory.hpp"
#include "train/options.hpp"

namespace fsdp {

struct PlanTableOptions {
  TrainOptions train;
  Cluster cluster;
  const GpuFigures* gpu = nullptr;  // null: no prediction
  std::size_t memory_limit = 0;     // of a rank; 0: no limit
  bool explain = false, json = false;
};
/// The options of fsdp-plan: those of fsdp-train, and its own.
OptionTable plan_option_table(PlanTableOptions& options);

struct PlanVariant {
  MemoryAccount memory;                // of rank 0, which writes the most in a save; without a trace
  ClusterTraffic traffic;              // of one update
  StepPrediction step;                 // only with --gpu
  bool keeps_whole_gradients = false;  // besides the rank's own sums
};

struct PlanRow {
  const Placement* placement = nullptr;
  MeshShape mesh;
  bool chosen = false;  // --sharding-strategy
  PlanVariant keeping;  // all that blocks save for backward is kept
  PlanVariant recomputing;
  const PlanVariant& variant(bool recompute) const { return recompute ? recomputing : keeping; }
};

struct PlanChoice {
  std::size_t row = 0;
  bool recompute = false;
};

struct PlanTable {
  PlanTableOptions options;
  Transformer model;
  std::vector<PlanRow> rows;  // in the order of placements()
  std::vector<std::string> warnings;

  const PlanRow& chosen() const;
  bool fits(const PlanVariant& variant) const {
    return options.memory_limit == 0 || variant.memory.total() <= options.memory_limit;
  }
  /// Returns the choice with the fewest bytes between nodes, then per rank, among those that fit; without recomputation if that
  /// fits.
  std::optional<PlanChoice> least_communicating() const;
  PlanChoice smallest() const;
};

/// A pure function, except that it reads config.json. Throws UserError.
PlanTable make_plan_table(const PlanTableOptions& options);

/// Returns a plan with at most two micro-batches: more micro-batches need no more memory, and all but the last are alike.
ShardedPlan plan_two_micro_batches(const Transformer& model, ShardingOptions options, MeshShape mesh,
                                   std::vector<std::string>* warnings = nullptr);

/// Returns the plan of the chosen strategy, for explanations. `recompute`: as --checkpoint-activations.
ShardedPlan plan_of_chosen(const PlanTable& table, bool recompute);

/// The memory of the model's states according to a common rule of thumb, in bytes. Activations are not included.
struct RuleOfThumb {
  std::string name;
  double parameters = 0, gradients = 0, optimizer_state = 0, gathered = 0;
  double total() const { return parameters + gradients + optimizer_state + gathered; }
};
/// The result of the FSDP tutorial's estimate_fsdp_memory(), which supports FULL_SHARD and SHARD_GRAD_OP; empty for other
/// strategies. `mixed` is its default: 16-bit parameters and gradients, and no fp32 copy.
std::optional<RuleOfThumb> tutorial_estimate(double parameters, int world_size, bool mixed, const Placement& placement);
/// The 2 + 2 + 12 bytes per parameter of the slides (16-bit parameters and gradients; fp32 copy, momentum and variance). Each
/// part is divided by the ranks of the shard axis if the strategy shards it (Rajbhandari et al. 2020, "ZeRO", figure 1).
RuleOfThumb slides_breakdown(double parameters, MeshShape mesh, const Placement& placement);

/// Returns the tables, at most 100 columns wide, and the conclusion.
std::string describe(const PlanTable& table);
/// Returns an explanation of each number of the chosen strategy, and of its difference from the rules of thumb.
std::string explain(const PlanTable& table);
/// Returns all numbers; with `explain` also the units, buffers and operations of the chosen strategy, with recomputation if the
/// options request it.
nlohmann::json to_json(const PlanTable& table);

}  // namespace fsdp
