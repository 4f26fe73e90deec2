// What a run measures of its updates, and reports: time, MFU, energy, norms of groups of parameters, memory and the trace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/energy.hpp"
#include "train/group_norms.hpp"
#include "train/update_policy.hpp"

namespace fsdp {

class Reporter {
 public:
  /// `trace` is rank 0's, null if there is none. Collective; throws CollectiveError.
  Reporter(const LoopContext& loop, const Machine& machine, const MemoryAccount& memory, const BatchSource& batches,
           TraceFile* trace);

  /// An update begins, and ends, which has not been refused. after_update() says that it was left out. Collective.
  void before_update();
  void after_update(const UpdateScalars& scalars, const UpdateResult& result, Verdict verdict);
  /// How long this rank has computed in the last update, without waiting for others; 0: unknown (a GPU).
  std::int64_t computing_ns() const;
  /// Of the last update that was done, in seconds; negative before the first.
  double last_update_s() const { return last_update_s_; }
  /// Writes the metrics of the last update, which was done. `computing_ns`: of all ranks; `data_wait_ns`: of the one that
  /// waited longest for the next batch. Not collective.
  void report(std::span<const std::int64_t> computing_ns, std::int64_t data_wait_ns);
  /// The closing lines: how it went, planned beside measured memory, how to go on. Collective.
  void finish(const std::string& next);

 private:
  std::optional<double> mfu(double positions_per_second);
  void write_trace();
  std::optional<Straggler> find_straggler(std::span<const std::int64_t> computing_ns) const;

  const LoopContext& loop_;
  const Machine& machine_;
  const MemoryAccount& memory_;
  const BatchSource& batches_;
  TraceFile* trace_;
  const std::uint64_t start_tokens_;
  const std::vector<std::string> hosts_;  // of all ranks
  std::optional<double> peak_flops_;      // until the run exceeds it
  const std::unique_ptr<GroupNorms> group_norms_;
  std::unique_ptr<Recorder> recorder_;  // until its updates are written
  EnergyMeter energy_;
  TrainMetrics last_;  // the last update
  Timer since_update_;
  double updating_s_ = 0;  // computing updates, those that were left out among them
  double last_update_s_ = -1;
};

}  // namespace fsdp
