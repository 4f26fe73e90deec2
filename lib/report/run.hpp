// A run as its metrics file shows it: all starts of one save folder joined, each update once.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "report/trace_figure.hpp"

namespace fsdp {

/// The value of a number that the metrics do not have.
inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

/// One value of each kind for each update that counts; `step` ascends. All but `step` and `time` may be not_known.
struct Updates {
  std::vector<double> step;
  std::vector<double> time;                // seconds that the processes had run since their first update, over all starts
  std::vector<double> tokens;              // so far
  std::vector<double> loss, largest_loss;  // nats per token
  std::vector<double> accuracy, entropy;   // of the predictions: a share, and nats
  std::vector<double> learning_rate, gradient_norm, loss_scale;
  std::vector<double> positions_per_second, tokens_per_second;                    // of all ranks
  std::vector<double> mfu;                                                        // 0 to 1
  std::vector<double> ms, exposed_ms;                                             // of rank 0
  std::vector<double> padding;                                                    // the share of the computed positions
  std::vector<double> data_wait_ms;                                               // of the rank that waited longest, after `ms`
  std::vector<double> products_ms, attention_ms, other_kernels_ms, optimizer_ms;  // parts of `ms`
  std::vector<double> memory;                                                     // bytes
  std::size_t size() const { return step.size(); }
};

using UpdateColumn = std::vector<double> Updates::*;
/// A number of a line of type `train`: its field in the metrics file, and its column.
struct UpdateField {
  const char* name;
  UpdateColumn column;
};
/// In the order of the table of --csv, which begins with what validations have as well.
inline constexpr std::array<UpdateField, 16> update_fields = {{{"tokens", &Updates::tokens},
                                                               {"loss", &Updates::loss},
                                                               {"mean_token_accuracy", &Updates::accuracy},
                                                               {"entropy", &Updates::entropy},
                                                               {"max_loss", &Updates::largest_loss},
                                                               {"lr", &Updates::learning_rate},
                                                               {"gnorm", &Updates::gradient_norm},
                                                               {"loss_scale", &Updates::loss_scale},
                                                               {"wps", &Updates::tokens_per_second},
                                                               {"positions_per_second", &Updates::positions_per_second},
                                                               {"ms", &Updates::ms},
                                                               {"mfu", &Updates::mfu},
                                                               {"padding", &Updates::padding},
                                                               {"comm_exposed_ms", &Updates::exposed_ms},
                                                               {"data_wait_ms", &Updates::data_wait_ms},
                                                               {"mem_peak_bytes", &Updates::memory}}};
/// The parts of the field `work_ms`.
inline constexpr std::array<UpdateField, 4> work_fields = {{{"products", &Updates::products_ms},
                                                            {"attention", &Updates::attention_ms},
                                                            {"other_kernels", &Updates::other_kernels_ms},
                                                            {"optimizer", &Updates::optimizer_ms}}};

/// One process from its start line to its last line.
struct RunStart {
  nlohmann::json line;               // the start line
  std::uint64_t step = 0, last = 0;  // the update after which it began, and the last one that it came to
  double began = 0, ended = 0;       // seconds since 1970, of its first and last line
  std::string why;                   // "done", "stopped: SIGTERM; Slurm: ...", "killed or crashed", "running"
  nlohmann::json end;                // the end line; null: none
  double lost_updates = 0;           // of those up to `last`, the ones that a later start repeated
  bool has_end() const { return end.is_object(); }
  /// An object, or null.
  nlohmann::json options() const {
    return line.contains("options") && line["options"].is_object() ? line["options"] : nlohmann::json();
  }
};

/// A save, a skipped update, a rank that computed longest in an update, and a text that the model made. All have the number of
/// the update; other numbers may be not_known.
struct Save {
  double step = 0, bytes = 0, ms = 0, stall_ms = 0;
};
struct SkippedUpdate {
  double step = 0;
  std::string reason;             // "overflow" or "spike"
  double loss_scale = not_known;  // with which it was tried
};
struct SlowestRank {
  double step = 0, rank = 0, ms = 0, median_ms = 0;
  std::string host;
};
struct Sample {
  double step = 0;
  std::string prompt, text;
};

struct Run {
  std::string name;               // for titles and legends
  std::filesystem::path metrics;  // the file
  std::filesystem::path folder;   // where its page and flight records are
  std::string save_folder;        // as the start lines have it; may be empty
  std::vector<RunStart> starts;   // not empty
  Updates updates;
  std::vector<double> valid_step, valid_tokens, valid_time, valid_loss, valid_accuracy, valid_entropy;  // `valid_step` ascends
  double best_step = not_known;  // of the validation that was the best one, as the run judged it
  std::vector<Save> saves;
  std::vector<SkippedUpdate> skipped;
  std::vector<SlowestRank> slow_ranks;
  std::vector<Sample> samples;
  std::vector<std::string> notes;  // what could not be read, and other things that a reader must know
  double last_time = 0;            // of the newest line, seconds since 1970
  bool is_running = false;         // a process on this host, or with the same file system, holds the lock of the save folder
  std::optional<Trace> trace;      // with_parts() sets this and the next one
  std::string flight;              // what the flight records show, as text; empty: there are none

  /// The options of the newest start.
  nlohmann::json options() const { return starts.back().options(); }
  bool is_done() const { return starts.back().why == "done"; }
};

/// Reads the runs at `path`, a metrics file or a save folder. The metrics file of a save folder is metrics.jsonl in it, else
/// the one that the options of its newest checkpoint name. If a file has lines of several save folders, each of them is a run;
/// of these, a save folder has its own, unless it was moved. `save_folder`, if given, chooses likewise from a metrics file.
/// Lines that cannot be read are left out and noted. Throws UserError if there is no metrics file, or if it has no line of a
/// run.
std::vector<Run> read_runs(const std::filesystem::path& path, const std::filesystem::path& save_folder = {});

/// Reads a line as std::getline() does. Of a line with more than longest_text bytes, which is none of a run, keeps only the
/// first ones.
bool next_line(std::istream& file, std::string& line);

/// Returns `value` as a whole number, and 0 if it is negative, larger than 2^53, or not a number.
std::uint64_t whole_number(double value);

}  // namespace fsdp
