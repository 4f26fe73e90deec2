// Predicts the time of an update: the operations of the plan, with the rates of a machine (rates.hpp), in a simulation of
// streams, links and the computing that collectives slow down (schedule.hpp). docs/simulator.md describes the method and
// compares it with published measurements of other programs.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "plan/rates.hpp"
#include "plan/schedule.hpp"
#include "plan/sharding.hpp"
#include "plan/traffic.hpp"

namespace fsdp {

struct Costing;

/// The rates of a node's disk, in bytes per second. The node's ranks share them. Reads and writes run at the same time.
struct DiskRates {
  double read = 0, write = 0;  // 0: unknown
  bool known() const { return read > 0 && write > 0; }
};

/// A rank whose computing takes `factor` times as long as that of the others; rank -1: none.
struct SlowRank {
  int rank = -1;
  double factor = 1;
};

/// Seconds of one update on one rank: the slow one, if there is one.
struct StepPrediction {
  double total = 0;
  // On the compute stream; with `slowed`, `exposed` and `host` they add up to `total`. The first three are of forward and
  // backward, without operations that only recompute activations.
  double products = 0, attention = 0, memory_bound = 0, recomputation = 0, optimizer = 0;
  double slowed = 0;         // what computing takes longer while collectives run
  double exposed = 0;        // the compute stream is idle, or runs a collective, load or unload
  double host = 0;           // outside of the device
  double communication = 0;  // of all collectives
  double offload = 0;        // of copies from and to host memory, added up although the two directions overlap
  double disk = 0;           // of reads and writes of files, added up in the same way
  double recomputed_products = 0, recomputed_attention = 0;  // parts of `recomputation`
};

/// The members of StepPrediction, with their names in files.
struct StepPart {
  const char* name;
  double StepPrediction::*seconds;
};
std::span<const StepPart> step_parts();

/// The time and the part of each operation of a simulated update, for drawings and the critical path.
struct SimulatedOperation {
  const Operation* operation;
  TaskTime time;
  bool is_critical;  // it is on the critical path
  CostTime work;     // of an operation that computes, if nothing slows it
};

/// One update, planned once, to be simulated with different rates.
class UpdateSimulation {
 public:
  using CostOf = std::function<Cost(const Operation&, const Costing&)>;
  /// `model` must outlive this object. `cost` replaces the costs of the plan's operations, to predict other programs.
  UpdateSimulation(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                   const CostOf& cost = nullptr);

  /// `rates.network` must have ports if the cluster has several nodes. `disk` must be known if state is in a file.
  StepPrediction predict(const Rates& rates, const DiskRates& disk = {}, SlowRank slow = {}) const;
  /// The operations of an update with `micro_batches` (2 or 3) or, if it has at most three, of the whole update, in the order
  /// of the plan. They live as long as this object.
  std::vector<SimulatedOperation> operations(const Rates& rates, const DiskRates& disk = {}, SlowRank slow = {},
                                             std::size_t micro_batches = 2) const;

  /// Returns the tokens per second of all ranks.
  double tokens_per_second(const StepPrediction& step) const;
  /// Returns the model FLOPs per second as a share of the peak (docs/glossary.md: MFU).
  double mfu(const StepPrediction& step, const Rates& rates) const;

 private:
  struct Planned {
    ShardedPlan sharded;
    std::vector<Cost> costs;
    std::vector<std::optional<CollectiveUse>> uses;
  };
  struct Simulated;
  Simulated simulate(const Planned& planned, const Rates& rates, const DiskRates& disk, SlowRank slow) const;

  const Transformer& model_;
  ShardingOptions options_;
  MeshShape mesh_;
  Cluster cluster_;
  std::vector<Planned> planned_;  // with two micro-batches and with three; if there are at most three, only with these
};

}  // namespace fsdp
