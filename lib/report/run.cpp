#include "report/run.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <map>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "record/metrics_file.hpp"

namespace fsdp {

namespace {

using nlohmann::json;

/// The metrics file of a save folder.
std::filesystem::path metrics_of(const std::filesystem::path& folder) {
  if (kind_of(folder / "metrics.jsonl") == PathKind::file) return folder / "metrics.jsonl";
  try {
    const std::optional<std::filesystem::path> step = latest_checkpoint(folder);
    const std::string named =
        step ? text_at(parse_json(CheckpointReader::open(*step, Verify::no)->header().options_json), "log-file") : "";
    if (!named.empty())
      for (const std::filesystem::path& path :
           {std::filesystem::path(named), std::filesystem::path(whole_path(folder)).parent_path() / named})
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
    const std::string type = text_at(line, "type");
    if (type == "start") start(line);
    if (!now_) return;
    const double time = number_at(line, "time"), step = number_at(line, "step");
    RunStart& start = now_->run.starts.back();
    if (std::isfinite(time)) start.ended = now_->run.last_time = std::max(time, now_->run.last_time);
    if (type == "stop") start.why = "stopped: " + text_at(line, "reason");
    if (type == "scheduler" && !now_->run.is_done()) {
      const std::string scheduler = text_at(line, "scheduler"), by = (scheduler.empty() ? "Slurm" : scheduler) + ": ";
      if (start.why.find(by) == std::string::npos) start.why += (start.why.empty() ? "" : "; ") + by + text_at(line, "reason");
    }
    if (type == "end") {
      start.end = line;
      if (start.why.empty()) start.why = "done";
    }
    if (!std::isfinite(step) || step < 0) return;
    now_->see_time(line);
    if (type == "train") train(line, step);
    if (type == "valid") valid(line, step);
    if (type == "lost" && line.contains("gnorm") && line.contains("lr")) {
      ++start.lost_updates;
      start.last = std::max(start.last, whole_number(step));
    }
    if (type == "skip") now_->run.skipped.push_back({step, text_at(line, "reason"), number_at(line, "loss_scale")});
    if (type == "save")
      now_->run.saves.push_back({step, number_at(line, "bytes"), number_at(line, "ms"), number_at(line, "stall_ms")});
    if (type == "sample") now_->run.samples.push_back({step, text_at(line, "prompt"), text_at(line, "text")});
  }

  std::vector<Run> finish() {
    std::vector<Run> runs;
    for (const std::string& folder : order_) {
      Run& run = read_[folder].run;
      for (RunStart& start : run.starts)
        if (start.why.empty()) start.why = "killed or crashed";
      runs.push_back(std::move(run));
    }
    return runs;
  }

 private:
  struct Read {
    Run run;
    bool repeats = false;
    // The time axis. `before`: that of the earlier starts. `first_age`: the age of the process when its first update began;
    // not_known before that. Lines of other versions have no age: then the durations of the lines are added.
    double before = 0, first_age = not_known, now = 0;

    void see_time(const json& line) {
      const double age = number_at(line, "process_s"), s = 1e-3 * number_at(line, "ms");
      const std::string type = text_at(line, "type");
      const bool is_update = type == "train" || type == "skip" || (type == "lost" && line.contains("gnorm"));
      if (!std::isfinite(age)) {
        if (std::isfinite(s) && (is_update || type == "valid")) now += s;
        return;
      }
      if (!std::isfinite(first_age) && is_update) first_age = age - (std::isfinite(s) ? s : 0);
      if (std::isfinite(first_age)) now = std::max(now, before + age - first_age);
    }
  };

  void start(const json& line) {
    const std::string folder = text_at(line, "save_folder");
    if (!read_.contains(folder)) {
      order_.push_back(folder);
      Run& made = read_[folder].run;
      made.metrics = path_;
      made.save_folder = folder;
    }
    now_ = &read_[folder];
    now_->before = now_->now;
    now_->first_age = not_known;
    RunStart begun;
    begun.line = line;
    const double time = number_at(line, "time");
    begun.step = begun.last = whole_number(number_at(line, "step"));
    begun.began = begun.ended = std::isfinite(time) ? time : now_->run.last_time;
    now_->run.starts.push_back(std::move(begun));
  }

  void train(const json& line, double step) {
    Run& run = now_->run;
    Updates& u = run.updates;
    if (!u.step.empty() && step <= u.step.back()) {  // the same update again: lines that could not be marked as lost
      if (!now_->repeats)
        run.notes.push_back(format("update {:.0f} and later ones are in the file twice; the first is shown", step));
      now_->repeats = true;
      return;
    }
    u.step.push_back(step);
    u.time.push_back(now_->now);
    for (const auto& [name, column] : update_fields) (u.*column).push_back(number_at(line, name));
    const json work = line.contains("work_ms") ? line["work_ms"] : json();
    for (const auto& [name, column] : work_fields) (u.*column).push_back(number_at(work, name));
    run.starts.back().last = whole_number(step);
    if (const auto slow = line.find("straggler"); slow != line.end() && slow->is_object())
      run.slow_ranks.push_back(
          {step, number_at(*slow, "rank"), number_at(*slow, "ms"), number_at(*slow, "median_ms"), text_at(*slow, "host")});
  }

  void valid(const json& line, double step) {
    Run& run = now_->run;
    if (!run.valid_step.empty() && step <= run.valid_step.back()) return;
    run.valid_step.push_back(step);
    run.valid_time.push_back(now_->now);
    run.valid_tokens.push_back(run.updates.tokens.empty() ? 0 : run.updates.tokens.back());
    run.valid_loss.push_back(number_at(line, "loss"));
    run.valid_accuracy.push_back(number_at(line, "mean_token_accuracy"));
    run.valid_entropy.push_back(number_at(line, "entropy"));
    if (line.contains("best") && line["best"] == true) run.best_step = step;
  }

  std::filesystem::path path_;
  std::map<std::string, Read> read_;
  std::vector<std::string> order_;
  Read* now_ = nullptr;
};

/// Sets the folder and the name of a run. `given` is the folder by which the user names it, if any. That one, and the folder of
/// a metrics.jsonl, may have been renamed since the start lines were written.
void find_place(Run& run, const std::filesystem::path& given, bool is_alone) {
  const std::filesystem::path own = whole_path(run.metrics), saves = run.save_folder;
  if (is_alone && !given.empty())
    run.folder = whole_path(given);
  else if (is_alone && own.filename() == "metrics.jsonl")
    run.folder = own.parent_path();
  else if (!saves.empty() && kind_of(saves) == PathKind::folder)
    run.folder = saves;
  if (!run.folder.empty()) run.name = run.folder.filename().string();
  if (run.name.empty()) run.name = saves.empty() ? own.filename().string() : saves.filename().string();
  if (run.folder.empty()) run.folder = own.parent_path();
}

/// Returns true if a process holds the lock of the save folder.
bool is_locked(const std::filesystem::path& folder) {
  const int lock = ::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (lock < 0) return false;
  const bool locked = ::flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(lock);
  return locked;
}

}  // namespace

std::uint64_t whole_number(double value) { return value >= 0 && value <= 0x1p53 ? static_cast<std::uint64_t>(value) : 0; }

bool next_line(std::istream& file, std::string& line) {
  line.clear();
  for (int c = file.rdbuf()->sbumpc(); c != std::istream::traits_type::eof(); c = file.rdbuf()->sbumpc()) {
    if (c == '\n') return true;
    if (line.size() < longest_text) line += static_cast<char>(c);
  }
  file.setstate(std::ios::eofbit);
  return !line.empty();
}

std::vector<Run> read_runs(const std::filesystem::path& given, const std::filesystem::path& save_folder) {
  const PathKind kind = kind_of(given);
  if (kind == PathKind::missing)
    throw UserError(format("there is no '{}'; name the save folder of a run, or its metrics file", given.string()));
  const std::filesystem::path path = kind == PathKind::folder ? metrics_of(given) : given;
  std::ifstream file;
  if (kind_of(path) == PathKind::file) file.open(path);
  if (!file.is_open())
    throw UserError(
        format("cannot read '{}' (it is no plain file, or may not be read); name the save folder of a run, or its "
               "metrics file",
               path.string()));
  Reader reader(path);
  std::size_t unreadable = 0, first_unreadable = 0, number = 0;
  for (std::string words; next_line(file, words);) {
    ++number;
    if (words.empty()) continue;
    const json line = parse_json(words);
    if (line.is_object() && line.contains("type")) {
      reader.add(line);
    } else if (!file.eof()) {  // the last line of a run that is running may be incomplete
      if (++unreadable == 1) first_unreadable = number;
    }
  }
  std::vector<Run> runs = reader.finish();
  if (runs.empty())
    throw UserError(format("'{}' has no line of a run (fsdp-train writes a line of type 'start' first); name a metrics file",
                           path.string()));
  const std::string folder = kind == PathKind::folder ? whole_path(given) : save_folder.empty() ? "" : whole_path(save_folder);
  if (std::any_of(runs.begin(), runs.end(), [&](const Run& run) { return run.save_folder == folder; }))
    std::erase_if(runs, [&](const Run& run) { return run.save_folder != folder; });
  for (Run& run : runs) {
    find_place(run, kind == PathKind::folder ? given : std::filesystem::path(), runs.size() == 1);
    if (RunStart& newest = run.starts.back(); !newest.has_end()) {
      run.is_running = is_locked(run.folder);
      if (run.is_running && newest.why == "killed or crashed") newest.why = "running";
      run.notes.push_back(run.is_running
                              ? "the run is running"
                              : "the run has no end in its metrics: it was killed or crashed, or it runs on another host");
    }
    if (unreadable > 0)
      run.notes.push_back(format("{} of {} cannot be read and {} left out; the first is line {}", plural(unreadable, "line"),
                                 path.string(), unreadable == 1 ? "is" : "are", first_unreadable));
  }
  return runs;
}

}  // namespace fsdp
