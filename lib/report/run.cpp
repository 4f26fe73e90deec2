#include "report/run.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

using nlohmann::json;

double number(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : not_known;
}
std::string text(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The metrics file of a save folder.
std::filesystem::path metrics_of(const std::filesystem::path& folder) {
  if (kind_of(folder / "metrics.jsonl") == PathKind::file) return folder / "metrics.jsonl";
  try {
    const std::optional<std::filesystem::path> step = latest_checkpoint(folder);
    const std::string named =
        step ? text(parse_json(CheckpointReader::open(*step, Verify::no)->header().options_json), "log-file") : "";
    if (!named.empty())
      for (const std::filesystem::path& path : {std::filesystem::path(named), folder.parent_path() / named})
        if (kind_of(path) == PathKind::file) return path;
  } catch (const std::exception&) {  // a folder without a checkpoint; the error below says what is missing
  }
  throw UserError(format(
      "'{}' has no metrics of a run (there is no metrics.jsonl in it, and no checkpoint in it names a --log-file that is "
      "here); name the metrics file",
      folder.string()));
}

/// Adds lines to the run that they belong to.
class Reader {
 public:
  explicit Reader(std::filesystem::path path) : path_(std::move(path)) {}

  void add(const json& line) {
    const std::string type = text(line, "type");
    if (type == "start") start(line);
    if (!now_) return;
    const double time = number(line, "time"), step = number(line, "step");
    RunStart& start = now_->starts.back();
    if (std::isfinite(time)) start.ended = now_->last_time = std::max(time, now_->last_time);
    if (type == "train") train(line, step);
    if (type == "valid") valid(line, step);
    if (type == "lost") ++start.lost_updates;
    if (type == "skip") now_->skipped.push_back({step, text(line, "reason")});
    if (type == "save") {
      now_->saves.push_back({step, number(line, "ms"), number(line, "stall_ms"), text(line, "path")});
      if (std::isfinite(now_->saves.back().stall_ms)) seconds() += 1e-3 * now_->saves.back().stall_ms;
    }
    if (type == "sample") now_->samples.push_back({step, text(line, "text")});
    if (type == "stop") start.why = "stopped: " + text(line, "reason");
    if (type == "end") {
      start.end = line;
      start.has_end = true;
      if (start.why.empty()) start.why = "done";
    }
  }

  std::vector<Run> finish() {
    std::vector<Run> runs;
    for (const std::string& folder : order_) {
      Run& run = runs_[folder];
      for (RunStart& start : run.starts)
        if (start.why.empty()) start.why = "killed or crashed";
      if (!run.starts.back().has_end) {
        run.starts.back().why = "going on, killed or crashed";
        run.notes.push_back("the run has no end in its metrics: it is going on, or it was killed or crashed");
      }
      runs.push_back(std::move(run));
    }
    return runs;
  }

 private:
  double& seconds() { return seconds_[now_]; }

  void start(const json& line) {
    const std::string folder = text(line, "save_folder");
    if (!runs_.contains(folder)) {
      order_.push_back(folder);
      Run& made = runs_[folder];
      made.metrics = path_;
      made.save_folder = folder;
      made.name = folder.empty() ? path_.filename().string() : std::filesystem::path(folder).filename().string();
    }
    now_ = &runs_[folder];
    RunStart begun;
    begun.line = line;
    const double step = number(line, "step"), time = number(line, "time");
    begun.step = begun.last = std::isfinite(step) ? static_cast<std::uint64_t>(step) : 0;
    begun.began = begun.ended = std::isfinite(time) ? time : now_->last_time;
    now_->starts.push_back(std::move(begun));
  }

  void train(const json& line, double step) {
    if (!std::isfinite(step)) return;
    Updates& u = now_->updates;
    if (!u.step.empty() && step <= u.step.back()) {  // the same update again: lines that could not be marked as lost
      if (!repeats_)
        now_->notes.push_back(format("update {:.0f} and later ones are in the file twice; the first is shown", step));
      repeats_ = true;
      return;
    }
    const double ms = number(line, "ms");
    if (std::isfinite(ms)) seconds() += 1e-3 * ms;
    u.step.push_back(step);
    u.time.push_back(seconds());
    u.tokens.push_back(number(line, "tokens"));
    u.loss.push_back(number(line, "loss"));
    u.largest_loss.push_back(number(line, "max_loss"));
    u.learning_rate.push_back(number(line, "lr"));
    u.gradient_norm.push_back(number(line, "gnorm"));
    u.loss_scale.push_back(number(line, "loss_scale"));
    u.positions_per_second.push_back(number(line, "positions_per_second"));
    u.tokens_per_second.push_back(number(line, "wps"));
    u.ms.push_back(ms);
    u.mfu.push_back(number(line, "mfu"));
    u.exposed_ms.push_back(number(line, "comm_exposed_ms"));
    u.data_wait_ms.push_back(number(line, "data_wait_ms"));
    u.memory.push_back(number(line, "mem_peak_bytes"));
    now_->starts.back().last = static_cast<std::uint64_t>(step);
    if (const auto slow = line.find("straggler"); slow != line.end() && slow->is_object())
      now_->slow_ranks.push_back(
          {step, number(*slow, "rank"), number(*slow, "ms"), number(*slow, "median_ms"), text(*slow, "host")});
  }

  void valid(const json& line, double step) {
    const double ms = number(line, "ms");
    if (std::isfinite(ms)) seconds() += 1e-3 * ms;
    now_->valid_step.push_back(step);
    now_->valid_time.push_back(seconds());
    now_->valid_tokens.push_back(now_->updates.tokens.empty() ? 0 : now_->updates.tokens.back());
    now_->valid_loss.push_back(number(line, "loss"));
  }

  std::filesystem::path path_;
  std::map<std::string, Run> runs_;
  std::vector<std::string> order_;
  std::map<Run*, double> seconds_;
  Run* now_ = nullptr;
  bool repeats_ = false;
};

}  // namespace

std::vector<Run> read_runs(const std::filesystem::path& given) {
  const PathKind kind = kind_of(given);
  if (kind == PathKind::missing)
    throw UserError(format("there is no '{}'; name the save folder of a run, or its metrics file", given.string()));
  const std::filesystem::path path = kind == PathKind::folder ? metrics_of(given) : given;
  std::ifstream file(path);
  if (!file) throw UserError(format("cannot read '{}'; name the save folder of a run, or its metrics file", path.string()));
  Reader reader(path);
  std::size_t unreadable = 0, first_unreadable = 0, number = 0;
  for (std::string words; std::getline(file, words);) {
    ++number;
    if (words.empty()) continue;
    const json line = parse_json(words);
    if (line.is_object() && line.contains("type")) {
      reader.add(line);
    } else if (!file.eof()) {  // the last line of a run that goes on may be incomplete
      if (++unreadable == 1) first_unreadable = number;
    }
  }
  std::vector<Run> runs = reader.finish();
  if (runs.empty())
    throw UserError(format("'{}' has no line of a run (fsdp-train writes a line of type 'start' first); name a metrics file",
                           path.string()));
  if (unreadable > 0)
    for (Run& run : runs)
      run.notes.push_back(format("{} of {} cannot be read and {} left out; the first is line {}", plural(unreadable, "line"),
                                 path.string(), unreadable == 1 ? "is" : "are", first_unreadable));
  return runs;
}

}  // namespace fsdp
