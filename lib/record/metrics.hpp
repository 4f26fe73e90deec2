// The metrics of a run: one JSON object per line in --log-file, and a readable line per step on stderr. Only rank 0 writes
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/progress.hpp"
#include "base/timer.hpp"
#include "engine/saver.hpp"
#include "machine/energy.hpp"
#include "record/metrics_file.hpp"
#include "record/tensorboard.hpp"
#include "run/executor.hpp"

namespace fsdp {

/// The traffic of one update according to the plan.
struct NodeTraffic {
  int nodes = 1;
  std::uint64_t sent = 0, out_of_node = 0;  // bytes that the busiest rank sends, and that the busiest node sends to other nodes
};

struct StartMetrics {
  std::string version;
  int world_size = 1;
  std::string strategy;
  const nlohmann::json* options = nullptr;  // to_json(TrainOptions)
  std::size_t parameters = 0;
  std::size_t plan_peak_bytes = 0;
  std::uint64_t step = 0, max_step = 0;  // number of updates that are done, and in total
  int shard_ranks = 1;                   // the number of ranks that a unit is sharded over
  std::optional<NodeTraffic> traffic;    // empty unless all nodes have the same number of consecutive ranks
  std::uint64_t sequences = 0;           // sequences consumed so far
  nlohmann::json* more = nullptr;        // further fields of the start line; null: none
};

/// The rank that computed longest in an update; waits for other ranks do not count.
struct Straggler {
  int rank = 0;
  std::string host;
  double ms = 0, median_ms = 0;  // computing time of this rank, and the median over all ranks
};

struct TrainMetrics {
  std::uint64_t step = 0;
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  double largest_loss = 0;                                           // the mean loss of the rank that has the largest one
  std::uint64_t tokens = 0;                                          // total since update 1
  double tokens_per_second = 0;                                      // of all ranks; only tokens that count in the loss
  double ms = 0;                                                     // duration of this update
  std::optional<double> mfu;                                         // empty if the device's peak is not known
  std::optional<double> loss_scale = {};                             // fp16 only
  std::optional<WorkTimes> times = {};                               // of rank 0; empty if unknown
  double data_wait_ms = 0;                                           // wait for the next batch on the rank that waited longest
  std::size_t mem_peak_bytes = 0;                                    // maximum over all ranks
  std::span<const std::pair<std::string, double>> group_norms = {};  // by group of parameters, with --log-group-norms
  std::optional<Straggler> straggler = {};                           // set every log_interval updates, if known
  double positions_per_second = 0;          // all computed positions, in the loss or not; 0: same as tokens_per_second
  std::optional<double> padding = {};       // the share of these positions after the end of their row
  std::optional<double> rank_balance = {};  // the mean of the ranks' FLOPs, divided by the most FLOPs of a rank
  std::optional<double> accuracy = {}, entropy = {};             // of the predictions of a transformer, as in UpdateResult
  std::span<const std::pair<std::string, double>> numbers = {};  // of a user's program, by name
};

/// An update that was left out (the weights did not change) because the gradient overflowed in fp16 or the update was a spike.
struct SkipMetrics {
  std::uint64_t step = 0;  // the update's number; the next update has the same number
  double ms = 0;
  std::uint64_t sequences = 0;  // sequences consumed so far, including those of this update
  struct Overflow {
    double scale, next_scale;
  };
  std::optional<Overflow> overflow = {};
  struct Spike {
    double loss, norm, most_loss, most_norm;
  };
  std::optional<Spike> spike = {};
};

struct ValidMetrics {
  std::uint64_t step = 0;
  double loss = 0;
  std::uint64_t tokens = 0;  // targets that count in the loss
  double ms = 0;
  double accuracy = 0, entropy = 0;  // as in MeanLoss
  bool is_best = false;              // the loss is the smallest so far
};

struct EndMetrics {
  std::uint64_t step = 0, tokens = 0;
  double tokens_per_second = 0;
  std::size_t mem_peak_bytes = 0;
  std::string next;               // what to do next
  std::uint64_t tokens_here = 0;  // tokens since this start
  Energy energy = {};             // energy since this start
};

/// How updates and validations are shown on stderr. `automatic`: as lines, and on a terminal with a progress bar; `simple`: as
/// lines; `json`: as the JSON lines of the metrics file; `none`: not at all. All other messages are printed whatever the format
/// is.
enum class LogFormat { automatic, simple, json, none };

/// Writes the metrics file and the lines on stderr. In the file, numbers have enough digits to be read back exactly; NaN and
/// infinity are null.
class Metrics {
 public:
  /// Appends to `file`, line by line; an empty path writes no file. A line is printed every `log_interval` updates; the file
  /// gets all updates. An inactive object (on ranks other than 0) does nothing. Throws UserError if the file cannot be opened.
  /// `wording` rewrites warnings, whose quantities have no names of options yet; null: it is not needed.
  Metrics(const std::filesystem::path& file, std::size_t log_interval, bool active, std::FILE* out = stderr,
          LogFormat format = LogFormat::automatic, std::string (*wording)(const std::string&) = nullptr);

  /// Opens the file, as the constructor does if it gets one. Call it before start(). Throws UserError.
  void to_file(const std::filesystem::path& file);
  /// Locks the file, as start() also does (MetricsFile::take()). Throws RunError if another run writes to it.
  void take_file() { file_.take(); }
  /// Also writes the metrics to an event file in `folder` (record/tensorboard.hpp). Call it before start(). Throws UserError.
  void to_tensorboard(const std::filesystem::path& folder);
  /// Locks the file and writes the start line. Before that, calls take_up_metrics(), which marks the lines of updates that this
  /// run repeats. Throws CallError, or RunError if another run writes to the file.
  void start(const StartMetrics& m);
  void train(const TrainMetrics& m);
  void skip(const SkipMetrics& m);
  /// Shows the progress of a validation in the bar. Without a bar, prints a line after ten seconds, and then each time that the
  /// duration has doubled.
  void validating(std::uint64_t step, std::size_t done, std::size_t batches, double seconds);
  void valid(const ValidMetrics& m);
  /// A text that the model generated after `prompt`.
  void sample(std::uint64_t step, const std::string& prompt, const std::string& text);
  void save(const SaveMetrics& m);
  /// Waits until all lines are on the disk. A save calls this before the checkpoint becomes valid. Any thread may call it.
  void sync() {
    if (const int error = file_.sync()) sync_error_ = error;
  }
  /// `bytes_read`: bytes of tensors read by the rank that read most; `file_bytes`: the size of the whole source.
  void restore(std::uint64_t step, const std::string& source, double ms, std::size_t bytes_read, std::size_t file_bytes);
  /// `reason`: "SIGUSR1" or "the file checkpoints/stop", for example.
  void stop(std::uint64_t step, const std::string& reason);
  void end(const EndMetrics& m);
  /// Prints a line on stderr; the metrics file does not get it.
  void say(const std::string& text);
  /// Prints a warning, in which option names replace the quantities in backquotes (see OptionTable::name_options()). A warning
  /// that was printed before is not printed again. The closing lines repeat all warnings.
  void warn(const std::string& text);

 private:
  void write(nlohmann::json line);
  TimeSpent spent() const;
  void count_update(double& seconds, double ms);
  void print(const nlohmann::json& line, const std::string& text);
  bool shows_bar() const { return active_ && bar_.terminal() && format_ == LogFormat::automatic; }

  bool active_;
  std::size_t log_interval_;
  LogFormat format_;
  std::FILE* out_;
  std::string (*const wording_)(const std::string&);
  MetricsFile file_;
  std::atomic<int> sync_error_ = 0;               // errno of the last sync() that failed
  std::unique_ptr<TensorBoardFile> tensorboard_;  // null: none
  int ranks_ = 1;
  std::vector<double> update_ms_;  // of the updates of this start
  ProgressBar bar_;
  TimeSpent before_, here_{.starts = 1};  // the time of earlier starts, and of this start
  double age_s_;                          // age of the process when since_made_ was started
  Timer since_made_;
  std::uint64_t first_step_ = 0, max_step_ = 0;
  static constexpr double first_validating_s = 10;
  double next_validating_s_ = first_validating_s;  // validating() prints its next line after this time
  double spent_ms_ = 0;                            // total time of the updates of this start
  double in_loss_ = 0, computed_ = 0;              // tokens of this start that count in the loss, and all tokens
  std::vector<std::string> warnings_;
};

/// "step 120/700  loss 2.3412  gnorm 0.532  lr 1.90e-03     412 ms  9.93 k tok/s  eta 3:58 min". Except for the last one, each
/// field has the same width for all numbers. If `in_loss` is true, shows how many tokens count in the loss: "9.93 k tok/s (2.50
/// k in the loss)". If max_step is 0, the last step is unknown: "step   120". The numbers of a user's program are appended.
std::string step_line(const TrainMetrics& m, std::uint64_t max_step, double eta_s, bool in_loss = false);

}  // namespace fsdp
