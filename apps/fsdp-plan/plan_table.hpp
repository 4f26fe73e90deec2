// All strategies side by side, on a cluster that need not be there: memory of a rank by part, bytes moved per update, what
// fits. The numbers are those of the run: the same layout, plan and list of operations, made without ranks.
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
  std::size_t memory_limit = 0;     // of a rank; 0: none
  bool explain = false, json = false;
};
/// The options of fsdp-plan: the rows of fsdp-train, and its own.
OptionTable plan_option_table(PlanTableOptions& options);

struct PlanVariant {
  MemoryAccount memory;                // of rank 0, which writes the most in a save; without a trace
  ClusterTraffic traffic;              // of one update
  StepPrediction step;                 // if there is a GPU to predict for
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
  std::vector<PlanRow> rows;  // in order of placements()
  std::vector<std::string> warnings;

  const PlanRow& chosen() const;
  bool fits(const PlanVariant& variant) const {
    return options.memory_limit == 0 || variant.memory.total() <= options.memory_limit;
  }
  /// The choice that sends the fewest bytes between nodes, then per rank, of all that fit; it recomputes nothing if that fits.
  std::optional<PlanChoice> least_communicating() const;
  PlanChoice smallest() const;
};

/// A pure function, but that it reads config.json. Throws UserError.
PlanTable make_plan_table(const PlanTableOptions& options);

/// The plan of an update of at most two micro-batches: more of them take no more memory, and all but the last are alike.
ShardedPlan plan_two_micro_batches(const Transformer& model, ShardingOptions options, MeshShape mesh,
                                   std::vector<std::string>* warnings = nullptr);

/// The plan of the chosen strategy: how it is explained. `recompute`: as --checkpoint-activations.
ShardedPlan plan_of_chosen(const PlanTable& table, bool recompute);

/// What the model's states take by a rule of thumb that others use, in bytes. Activations are left out.
struct RuleOfThumb {
  std::string name;
  double parameters = 0, gradients = 0, optimizer_state = 0, gathered = 0;
  double total() const { return parameters + gradients + optimizer_state + gathered; }
};
/// What the tutorial's estimate_fsdp_memory() gives, which knows FULL_SHARD and SHARD_GRAD_OP; none for other strategies.
/// `mixed` is its default: 16-bit parameters and gradients, and no fp32 copy.
std::optional<RuleOfThumb> tutorial_estimate(double parameters, int world_size, bool mixed, const Placement& placement);
/// The slides' 2 + 2 + 12 bytes per parameter (16-bit parameters and gradients; fp32 copy, momentum and variance), each kind
/// divided by the ranks of the shard axis where the strategy shards it (Rajbhandari et al. 2020, "ZeRO", figure 1).
RuleOfThumb slides_breakdown(double parameters, MeshShape mesh, const Placement& placement);

/// The tables, at most 100 columns wide, and the conclusion.
std::string describe(const PlanTable& table);
/// Where each number of the chosen strategy comes from, and how the rules of thumb differ.
std::string explain(const PlanTable& table);
/// All numbers; with `explain` also units, buffers and operations of the chosen strategy, recomputing if the options say so.
nlohmann::json to_json(const PlanTable& table);

}  // namespace fsdp
