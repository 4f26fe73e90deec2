// The metrics of a training loop: the lines and the file that fsdp-train writes, and traces of updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/fully_sharded.hpp"

namespace fsdp {

/// Options that fsdp-train also has, with the same meanings and bounds. docs/api-options.md explains each option.
struct MetricsOptions {
  std::string log_file = {};        // JSON lines are appended to this file; empty: none
  std::size_t log_interval = 10;    // a line on standard error every so many updates
  std::string log_format = "auto";  // of these lines: "auto", "simple", "json", "none"
  std::uint64_t max_update = 0;     // the last update, for the lines; 0: unknown
  std::string save_dir = {};        // the folder of the run's checkpoints, which tells its lines from those of other runs
  std::string trace = {};           // the file for the times of all operations of a few updates; empty: none
  std::size_t trace_updates = 3;    // the number of updates in `trace`
};

/// Rank 0 writes; all ranks make this object and call train() and end(). The model must outlive it.
class MetricsLog {
 public:
  /// Make it after restore(): the lines of updates that this run repeats are marked as lost. From then on, the model's saves
  /// are reported, too. Collective; throws CollectiveError.
  explicit MetricsLog(FullyShardedDataParallel& model, const MetricsOptions& options = {});
  MetricsLog(const MetricsLog&) = delete;
  ~MetricsLog();

  /// Reports the last step() of the model, with the fields of fsdp-train's lines of type "train", and `numbers` under the key
  /// "numbers". After the last of the traced updates, writes the trace, in the Trace Event Format that ui.perfetto.dev reads.
  /// Collective.
  void train(const StepResult& result, double learning_rate, const std::vector<std::pair<std::string, double>>& numbers = {});
  /// Prints a line on standard error. Not collective.
  void say(const std::string& text);
  /// Reports that the loop has ended. `reason`, if it is not empty, is why it stops early: Job::stop_reason(). Collective.
  void end(const std::string& reason = "");

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
