// A run's reports on itself: one JSON object per line in --log-file, and a line per step for people on stderr. Rank 0 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "base/progress.hpp"
#include "base/timer.hpp"
#include "train/energy.hpp"
#include "train/metrics_file.hpp"

namespace fsdp {

/// What the plan says that an update sends.
struct NodeTraffic {
  int nodes = 1;
  std::uint64_t sent = 0, out_of_node = 0;  // bytes of the rank that sends most; of the node that sends most, to other nodes
};

struct StartMetrics {
  std::string version;
  int world_size = 1;
  std::string strategy;
  const nlohmann::json* options = nullptr;  // to_json(TrainOptions)
  std::size_t parameters = 0;
  std::size_t plan_peak_bytes = 0;
  std::uint64_t step = 0, max_step = 0;  // updates done, and to do in all
  int shard_ranks = 1;                   // that have a unit's shards among them
  std::optional<NodeTraffic> traffic;    // where each node has as many ranks, consecutive ones
  std::uint64_t sequences = 0;           // of data used up
};

/// The rank that computed longest in an update; what it waited for others does not count.
struct Straggler {
  int rank = 0;
  std::string host;
  double ms = 0, median_ms = 0;  // its computing; that of the ranks in the middle
};

struct TrainMetrics {
  std::uint64_t step = 0;
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  std::uint64_t tokens = 0;                                          // so far
  double tokens_per_second = 0;                                      // all ranks, tokens that count in the loss
  double ms = 0;                                                     // of this update
  std::optional<double> mfu;                                         // null until the device's peak is known
  std::optional<double> loss_scale = {};                             // of fp16
  std::optional<double> comm_exposed_ms = {};                        // where it is known
  double data_wait_ms = 0;                                           // for the next batch, the rank that waited longest
  std::size_t mem_peak_bytes = 0;                                    // most of all ranks
  std::span<const std::pair<std::string, double>> group_norms = {};  // of groups of parameters, if asked for
  std::optional<Straggler> straggler = {};                           // every log_interval updates, where it is known
  double positions_per_second = 0;                                   // all that are computed; 0: as many as count in the loss
};

/// An update that was left out: it overflowed in fp16, or it was a spike.
struct SkipMetrics {
  std::uint64_t step = 0;  // that of the next one
  double ms = 0;
  std::uint64_t sequences = 0;  // of data used up, its own among them
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
  std::uint64_t tokens = 0;  // targets that counted
  double ms = 0;
};

struct EndMetrics {
  std::uint64_t step = 0, tokens = 0;
  double tokens_per_second = 0;
  std::size_t mem_peak_bytes = 0;
  std::string next;               // how to go on
  std::uint64_t tokens_here = 0;  // since this start
  Energy energy = {};             // likewise
};

/// What people see of updates and validations: a bar on a terminal and lines (automatic), lines, the metrics' own lines of
/// JSON, or nothing. Whatever else is said, is said in each.
enum class LogFormat { automatic, simple, json, none };

/// Numbers are written with enough digits to read back exactly; numbers that are not finite as null.
class Metrics {
 public:
  /// Appends to `file`, flushed line by line; an empty path writes none. `log_interval`: every how many updates a line is
  /// printed (the file has them all). Throws UserError if the file cannot be opened. An inactive writer (ranks other than 0)
  /// does nothing.
  Metrics(const std::filesystem::path& file, std::size_t log_interval, bool active, std::FILE* out = stderr,
          LogFormat format = LogFormat::automatic);

  /// Lines of updates that are done again from here on become lines of type lost: take_up_metrics(). Throws CallError.
  void start(const StartMetrics& m);
  void train(const TrainMetrics& m);
  void skip(const SkipMetrics& m);
  /// The bar shows how far a validation is. Without a bar, a validation that has taken more than ten seconds says so once.
  void validating(std::uint64_t step, std::size_t done, std::size_t batches, double seconds);
  void valid(const ValidMetrics& m);
  /// `stall_ms`: of `ms`, how long training stood still.
  void save(std::uint64_t step, const std::filesystem::path& folder, double ms, double stall_ms);
  /// Before a save counts: all lines of its updates are on the disk. Any thread may call it.
  void sync() { file_.sync(); }
  /// `bytes_read`: of tensors, by the rank that read most; `file_bytes`: of the whole source.
  void restore(std::uint64_t step, const std::string& source, double ms, std::size_t bytes_read, std::size_t file_bytes);
  /// `reason`: "SIGUSR1", "stop file".
  void stop(std::uint64_t step, const std::string& reason);
  void end(const EndMetrics& m);
  /// A line for people alone.
  void say(const std::string& text);
  /// The same of a warning, whose quantities get the names of options.
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
  MetricsFile file_;
  ProgressBar bar_;
  TimeSpent before_, here_{.starts = 1};  // of earlier starts; of this one
  double age_s_;                          // of the process when since_made_ began
  Timer since_made_;
  std::uint64_t first_step_ = 0, max_step_ = 0;
  std::uint64_t last_validating_ = 0;  // the step whose validation has said that it takes long
  double spent_ms_ = 0;                // on the steps of this run
};

/// "step 120/700  loss 2.3412  gnorm 0.532  lr 1.90e-03  412 ms  9.93 k tok/s  eta 3:58 min". If only some tokens count in the
/// loss: "9.93 k tok/s (2.50 k in the loss)".
std::string step_line(const TrainMetrics& m, std::uint64_t max_step, double eta_s);

}  // namespace fsdp
