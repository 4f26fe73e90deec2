// Measures and reports the updates of a run: time, MFU, energy, norms of groups of parameters, memory and the trace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/update_policy.hpp"
#include "machine/energy.hpp"
#include "record/group_norms.hpp"
#include "train/train_data.hpp"

namespace fsdp {

/// What a rank has done in an update. `computing_ns`: Reporter::computing_ns().
struct RankWork {
  std::int64_t computing_ns, positions, padding;
  double flops;
};

class Reporter {
 public:
  /// `trace` is the trace file on rank 0. It is null on other ranks, and without --trace. Collective; throws CollectiveError.
  Reporter(const LoopContext& loop, const Machine& machine, const MemoryAccount& memory, const BatchSource& batches,
           TraceFile* trace);

  /// Call before_update() before each update, and after_update() after each update whose verdict is not `refused`. If the
  /// verdict is `left_out`, after_update() reports the update. Collective.
  void before_update();
  void after_update(const UpdateScalars& scalars, const UpdateResult& result, Verdict verdict);
  /// The time that this rank computed in the last update, without waits for other ranks. 0 if unknown: a GPU's time is known
  /// only for updates that were recorded.
  std::int64_t computing_ns() const;
  /// This rank's mean loss in the last update that counted; minus infinity if none of its targets counted.
  double own_loss() const { return own_loss_; }
  /// The duration of the last update that counted, in seconds; negative before the first.
  double last_update_s() const { return last_update_s_; }
  /// Writes the metrics of the last update, which must have counted. `ranks` has the work of each rank; `data_wait_ns` is the
  /// wait for the next batch on the rank that waited longest, and `largest_loss` the largest own_loss(). Not collective.
  void report(std::span<const RankWork> ranks, std::int64_t data_wait_ns, double largest_loss);
  /// Prints the closing lines: rates, planned and measured memory, and `next`, which tells what to do next. Collective.
  void finish(const std::string& next);

 private:
  std::optional<double> mfu(double flops_per_second);
  void write_trace();
  std::optional<Straggler> find_straggler(std::span<const RankWork> ranks) const;

  const LoopContext& loop_;
  const Machine& machine_;
  const MemoryAccount& memory_;
  const BatchSource& batches_;
  TraceFile* trace_;
  const std::uint64_t start_tokens_;
  const std::vector<std::string> hosts_;  // by rank
  std::optional<double> peak_flops_;      // empty if unknown, or once the run has exceeded it
  const std::unique_ptr<GroupNorms> group_norms_;
  std::unique_ptr<Recorder> recorder_;  // null without --trace, and once the trace is written
  EnergyMeter energy_;
  TrainMetrics last_;  // metrics of the last update that counted
  Timer since_update_;
  double updating_s_ = 0;  // total time of updates, including those that were left out
  double last_update_s_ = -1;
  double own_loss_ = 0;
};

}  // namespace fsdp
