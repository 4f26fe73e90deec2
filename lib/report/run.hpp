// A run as its metrics file, save folder and flight records show it: all starts of one save folder joined, each update once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace fsdp {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

/// One value of each kind for each update that counts, ordered by update. not_known: the metrics do not say.
struct Updates {
  std::vector<double> step, tokens,
      time;  // `time`: seconds of updates, saves and validations since the run began, without starts
  std::vector<double> loss, largest_loss, learning_rate, gradient_norm, loss_scale;
  std::vector<double> positions_per_second, tokens_per_second, ms, mfu, exposed_ms, data_wait_ms, memory;
  std::size_t size() const { return step.size(); }
};

/// One process from its start line to its last line.
struct RunStart {
  nlohmann::json line;               // the start line
  std::uint64_t step = 0, last = 0;  // the update after which it began, and its last one
  double began = 0, ended = 0;       // seconds since 1970, of its first and last line
  std::string why;                   // why it ended: "done", "stopped: SIGTERM", "killed or crashed"
  bool has_end = false;
  double lost_updates = 0;  // lines of updates that a later start repeated
  nlohmann::json end;       // the end line; null: none
};

struct Save {
  double step = 0, ms = 0, stall_ms = 0;
  std::string path;
};
struct SkippedUpdate {
  double step = 0;
  std::string reason;  // "overflow" or "spike"
};
/// The rank that computed longest in an update.
struct SlowRank {
  double step = 0, rank = 0, ms = 0, median_ms = 0;
  std::string host;
};

struct Sample {
  double step = 0;
  std::string text;
};

struct Run {
  std::string name;               // for legends: the name of the save folder
  std::filesystem::path metrics;  // the file
  std::string save_folder;        // as the start lines have it; may be empty
  std::vector<RunStart> starts;
  Updates updates;
  std::vector<double> valid_step, valid_tokens, valid_time, valid_loss;
  std::vector<Save> saves;
  std::vector<SkippedUpdate> skipped;
  std::vector<SlowRank> slow_ranks;
  std::vector<Sample> samples;
  std::vector<std::string> notes;  // what could not be read, and other things that a reader of the page must know
  double last_time = 0;            // of the newest line, seconds since 1970

  /// The options of the newest start; an object, or null.
  nlohmann::json options() const {
    return starts.empty() ? nlohmann::json() : starts.back().line.value("options", nlohmann::json());
  }
};

/// Reads a run. `path` is a metrics file, or a save folder: then its metrics file is metrics.jsonl in it, else the one that the
/// options of its newest checkpoint name. If the file has lines of several save folders, each is a run. Lines that cannot be
/// read are left out and noted. Throws UserError if there is no metrics file, or if it has no line of a run.
std::vector<Run> read_runs(const std::filesystem::path& path);

}  // namespace fsdp
