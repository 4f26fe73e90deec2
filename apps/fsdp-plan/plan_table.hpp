// Plans of all sharding strategies for a cluster, which need not exist: the parts of a rank's memory, the bytes sent per
// update, and which strategies fit. The numbers equal those of a run, since they come from the same layout, plan and list of
// operations, which are computed without ranks.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/options.hpp"
#include "engine/memory.hpp"
#include "machine/measured_rates.hpp"
#include "options/options.hpp"
#include "plan/plan.hpp"
#include "plan/prediction.hpp"
#include "plan/traffic.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

struct PlanTableOptions {
  TrainOptions train;
  Cluster cluster;
  const GpuFigures* gpu = nullptr;  // the GPU to predict times for; null if none
  std::string network;              // between nodes: see read_network(); empty: that of `gpu`
  double gpu_power = 0;             // the power limit in W; 0: the highest
  std::vector<std::string> varied;  // the given options that --tune replaces: "--batch-size"
  SlowRank slow;
  std::vector<int> scaling;        // other numbers of ranks to predict times for, ascending
  bool keeps_total_batch = false;  // on other numbers of ranks: all ranks together keep train.total_batch_size
  std::filesystem::path out;       // the folder for a page about scaling; empty: none
  DiskRates nvme_bandwidth;        // in GB/s
  std::size_t memory_limit = 0;    // of a rank: train.memory_limit, or else the memory of `gpu`; 0 means no limit
  bool tune = false;               // search the fastest options: see tune.hpp
  bool keeps_update = false;       // the search keeps the tokens of an update, because the options set them
  std::size_t host_memory = 0;     // of a node, for the search; 0: unknown
  double tokens = 0, price = 0;    // to train, and of an hour of a GPU, or of a node without GPUs; 0: not given
  bool explain = false, json = false;
  DiskRates disk() const { return {1e9 * nvme_bandwidth.read, 1e9 * nvme_bandwidth.write}; }
};
/// Returns true if the options request recomputation.
bool recomputes(const PlanTableOptions& options);
/// Returns true for --recompute-num-layers: the column of recomputation is then about the first blocks.
bool recomputes_first_blocks(const PlanTableOptions& options);
/// The options of fsdp-plan: those of fsdp-train, and its own.
OptionTable plan_option_table(PlanTableOptions& options);

/// A strategy with or without recomputation of activations.
struct PlanVariant {
  MemoryAccount memory;    // of rank 0, which has the largest snapshot for a save; without the buffers of --trace
  ClusterTraffic traffic;  // of one update
  DiskTraffic disk;        // of a rank in one update
  StepPrediction step;     // if PlanTable::predicts(), as the next two
  double tokens_per_second = 0, mfu = 0;
  double seconds_without_slow_rank = 0;      // of an update, if PlanTableOptions::slow has a rank
  std::shared_ptr<const Transformer> model;  // with smaller pieces of logits than the table's if train.memory_limit asks for it
  std::size_t recomputed_blocks = 0, offloaded_inputs = 0;  // of --recompute-num-layers
  bool keeps_whole_gradients = false;  // true if a rank accumulates whole gradients, besides those of its shard
};

/// A strategy.
struct PlanRow {
  const Placement* placement = nullptr;
  MeshShape mesh;
  bool chosen = false;  // true for the strategy of --sharding-strategy
  PlanVariant keeping;  // all activations are kept from forward to backward
  PlanVariant recomputing;
  const PlanVariant& variant(bool recompute) const { return recompute ? recomputing : keeping; }
  /// For parameters, gradients and optimizer state: true if the state is sharded between updates.
  std::array<bool, 3> sharded() const;
  /// The number of parts into which one of these states is divided between updates.
  std::uint64_t parts_of(std::size_t state) const { return sharded()[state] ? static_cast<std::uint64_t>(mesh.shard) : 1; }
  /// For the same: true if the state is sharded between updates but also held whole for a time: parameters from forward to
  /// backward, gradients until they are reduced.
  std::array<bool, 3> kept_whole() const;
};

struct PlanChoice {
  std::size_t row = 0;
  bool recompute = false;
};

/// The strategy of --sharding-strategy on another number of ranks (plan_scaling.hpp).
struct PredictedPoint {
  Cluster cluster;
  std::size_t micro_batches = 1;  // of an update on each rank
  bool recomputes = false;
  PlanVariant variant;
};

struct PlanTable {
  PlanTableOptions options;
  std::shared_ptr<const Transformer> model;
  std::optional<Rates> rates;  // of the machine to predict times for
  std::vector<PlanRow> rows;   // in the order of placements()
  std::vector<PredictedPoint> scaling;
  std::vector<std::string> warnings;
  std::string choice;  // what train.memory_limit chooses for the strategy of --sharding-strategy, as options; empty: nothing

  const PlanRow& chosen() const;
  /// Returns true if there are predictions: with --gpu or --measured and, if state is in a file, --nvme-bandwidth.
  bool predicts() const { return rates && (options.disk().known() || !options.train.sharding.plan.places.on_disk()); }
  bool fits(const PlanVariant& variant) const {
    return options.memory_limit == 0 || variant.memory.total() <= options.memory_limit;
  }
  /// The number of blocks whose activations are recomputed.
  std::size_t recomputed_blocks(const PlanVariant& variant, bool recompute) const {
    return !recompute ? 0 : recomputes_first_blocks(options) ? variant.recomputed_blocks : model->blocks.size();
  }
  /// Returns the choice that sends the fewest bytes out of a node, among those that fit. If several are equal, the fewest bytes
  /// per rank decide, then recomputation (preferably none), then memory.
  std::optional<PlanChoice> least_communicating() const;
  /// Returns the choice that needs the least memory.
  PlanChoice smallest() const;
};

/// Returns a table without rows: the model, the rates and the warnings. Throws UserError.
PlanTable start_plan_table(const PlanTableOptions& options);
/// Computes the table from the options; the only file that it reads is config.json. Throws UserError.
PlanTable make_plan_table(const PlanTableOptions& options);

/// Plans one strategy for the cluster of the table's options. `warnings`, if not null, receives those about the units. Throws
/// UserError.
PlanRow plan_strategy(const PlanTable& table, const Placement& placement, std::vector<std::string>* warnings = nullptr);

/// Returns the options of the chosen strategy; with recomputation of activations if `recompute`.
ShardingOptions options_of_chosen(const PlanTable& table, bool recompute);
/// Returns the plan of the chosen strategy, for explanations; with recomputation of activations if `recompute`.
ShardedPlan plan_of_chosen(const PlanTable& table, bool recompute);
/// Returns the predicted times, in seconds, of the operations of that plan; nothing if there are no predictions.
std::vector<TaskTime> times_of_chosen(const PlanTable& table, bool recompute);

/// The memory of the model states (parameters, gradients and optimizer state) according to a common rule of thumb, in bytes.
struct RuleOfThumb {
  std::string name;
  double parameters = 0, gradients = 0, optimizer_state = 0, gathered = 0;
  double total() const { return parameters + gradients + optimizer_state + gathered; }
};
/// The rule of the FSDP tutorial's estimate_fsdp_memory(), which supports FULL_SHARD and SHARD_GRAD_OP; empty for other
/// strategies. `mixed`, the tutorial's default, means 16-bit parameters and gradients without an fp32 copy.
std::optional<RuleOfThumb> tutorial_estimate(double parameters, int world_size, bool mixed, const Placement& placement);
/// The rule of the ZeRO paper (Rajbhandari et al. 2020, figure 1) and of many slides. A 16-bit parameter needs 2 bytes, its
/// gradient 2 bytes, and its optimizer state 12 bytes: an fp32 copy of the parameter, momentum and variance. A part that the
/// strategy shards is divided by the number of ranks of the shard axis.
RuleOfThumb slides_breakdown(double parameters, MeshShape mesh, const Placement& placement);

/// Returns the tables, at most 100 columns wide, and the conclusion.
std::string describe(const PlanTable& table);
/// Returns an explanation of each number of the chosen strategy, and of its difference from the rules of thumb.
std::string explain(const PlanTable& table);
/// Returns all numbers. With options.explain also returns the units, buffers and operations of the chosen strategy, with
/// recomputation if the options request it.
nlohmann::json to_json(const PlanTable& table);

}  // namespace fsdp
