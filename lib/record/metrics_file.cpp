#include "record/metrics_file.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

bool ends_in_mid_line(const std::filesystem::path& path) {
  if (kind_of(path) != PathKind::file) return false;
  const InputFile file(path);
  if (file.size() == 0) return false;
  char first = 0, last = 0;
  file.read(0, &first, 1);
  file.read(file.size() - 1, &last, 1);
  if (first != '{')
    throw UserError(
        format("--log-file '{}' is not a metrics file (it does not begin with a line of JSON, and lines would be appended to "
               "it); give another name",
               path.string()));
  return last != '\n';
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

std::string whole_path(const std::filesystem::path& path) {
  std::error_code unknown;
  const auto absolute = std::filesystem::absolute(path, unknown);  // weakly_canonical() keeps a missing path relative
  const auto whole = std::filesystem::weakly_canonical(absolute, unknown);
  std::string text = (unknown ? absolute : whole).string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

void MetricsFile::open(const std::filesystem::path& path) {
  path_ = path;
  require_no_foreign_link(path_);
  const PathKind kind = kind_of(path_);
  static_cast<void>(ends_in_mid_line(path_));  // throws if it is no metrics file
  std::error_code ignored;                     // opening the file reports the error
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
  // Without O_NONBLOCK, opening a pipe would wait for a reader.
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd_ < 0)
    throw UserError(format("cannot write --log-file '{}' ({}); {}", path_.string(), why_not_opened(path_, errno),
                           kind == PathKind::file ? "make the file writable, or give another name"
                                                  : "give a path in a folder that can be written"));
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
  struct stat info {};
  is_plain_ = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool MetricsFile::append(std::string_view line) {
  if (!is_open()) return true;
  failed_ = !write_all(fd_, line);
  return !failed_;
}

int MetricsFile::sync() noexcept { return is_plain_ && ::fdatasync(fd_) != 0 ? errno : 0; }

bool MetricsFile::is_in_place(bool now) {
  if (!is_plain_ || (!now && since_look_.seconds() < 1)) return in_place_;
  since_look_.restart();
  struct stat opened {
  }, named{};
  in_place_ = ::fstat(fd_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
              opened.st_dev == named.st_dev;
  return in_place_;
}

namespace {

/// Calls `look` with the offset and text of each line, from the last line backwards, until it returns false.
void look_backwards(const InputFile& file, const std::function<bool(std::uint64_t place, std::string_view line)>& look) {
  constexpr std::uint64_t block = 65536;
  std::string tail;  // text from `begin` on that was not yet passed to `look`
  for (std::uint64_t begin = file.size(); begin > 0 && tail.size() < longest_text;) {
    const std::uint64_t n = std::min(begin, block);
    std::string read(n, '\0');
    file.read(begin -= n, read.data(), n);
    tail.insert(0, read);
    while (!tail.empty()) {
      const std::size_t end = tail.back() == '\n' ? tail.size() - 1 : tail.size();
      const std::size_t newline = end == 0 ? tail.npos : tail.rfind('\n', end - 1);
      if (newline == tail.npos && begin > 0) break;
      const std::size_t first = newline == tail.npos ? 0 : newline + 1;
      if (!look(begin + first, std::string_view(tail).substr(first, end - first))) return;
      tail.resize(first);
    }
  }
}

/// The save folder of the newest start in the file; empty if it is unknown.
std::string newest_save_folder(const std::filesystem::path& path) {
  std::string folder;
  look_backwards(InputFile(path), [&](std::uint64_t, std::string_view text) {
    if (text.find("\"type\":\"start\"") == text.npos) return true;
    folder = text_at(parse_json(text), "save_folder");
    return false;
  });
  return folder;
}

double number(const nlohmann::json& line, const char* key) {
  const double found = number_at(line, key);
  return std::isnan(found) ? 0 : found;
}

constexpr double clock_step_s = 1;  // smaller steps of the wall clock are ignored

/// One start of the run. Its lines are visited in reverse order.
struct Segment {
  TimeSpent spent{.starts = 1};
  bool came_to_update = false;                                    // true: this start has an update that is not repeated
  double last_time = 0, time_behind = 0, first_update_began = 0;  // wall clock; time_behind: time of the line visited before
  double last_age = 0, first_update_age = 0;                      // age of the process in seconds; 0 in lines of older versions
  bool clock_went_back = false;
  std::optional<double> loss;  // of the validation after the last update that is not repeated
  bool sampled = false;
  std::vector<std::pair<std::uint64_t, std::string>> marks;  // offset and new text of each type to replace
  double marked_s = 0;                                       // total time of the train lines that are marked

  void see(const std::string& type, const nlohmann::json& line, bool lost) {
    const double time = number(line, "time"), seconds = 1e-3 * number(line, "ms");
    if (last_time == 0) last_time = time, last_age = number(line, "process_s");
    clock_went_back = clock_went_back || (time > time_behind + clock_step_s && time_behind > 0);
    time_behind = time;
    if (type == "save") spent.saves_s += 1e-3 * number(line, "stall_ms");
    if (type == "valid") spent.validation_s += seconds;
    const bool was_update = type == "train" || type == "skip" || (type == "lost" && line.contains("gnorm"));
    if (!was_update) return;
    if (time > 0) first_update_began = time - seconds, first_update_age = number(line, "process_s") - seconds;
    (lost || type == "lost" ? spent.lost_s : type == "skip" ? spent.skipped_s : spent.useful_s) += seconds;
    if (lost && type == "train") marked_s += seconds;
    came_to_update = came_to_update || (type == "train" && !lost);
  }
  /// Call it at the start line, which is visited last.
  void end(const nlohmann::json& start) {
    const double began = number(start, "time") - number(start, "process_s");
    const double parts = spent.useful_s + spent.lost_s + spent.skipped_s + spent.saves_s + spent.validation_s;
    spent.running_s = last_age > 0 ? last_age : last_time - began;
    clock_went_back = clock_went_back || spent.running_s < parts - clock_step_s;
    spent.running_s = std::max(spent.running_s, parts);
    spent.startup_s =
        first_update_began == 0 ? spent.running_s : std::max(0.0, last_age > 0 ? first_update_age : first_update_began - began);
  }
};

/// Returns true if a start line belongs to the run that saves in this folder. Lines of older versions have no "save_folder",
/// only the option --save-dir.
bool is_start_of(const nlohmann::json& line, const std::string& save_dir) {
  const nlohmann::json none;
  const auto at = [&](const nlohmann::json& object, const char* key) -> const nlohmann::json& {
    return object.is_object() && object.contains(key) ? object[key] : none;
  };
  const nlohmann::json &folder = at(line, "save_folder"), &option = at(at(line, "options"), "save-dir");
  if (folder.is_string()) return folder.get<std::string>() == whole_path(save_dir);
  return option.is_string() && option.get<std::string>() == save_dir;
}

/// Returns true if another descriptor of this process has the file open: that one may have the lock.
bool has_another(int fd) {
  struct stat mine {
  }, other{};
  std::error_code unknown;
  for (std::filesystem::directory_iterator at("/proc/self/fd", unknown), end; !unknown && at != end; at.increment(unknown)) {
    const int found = std::atoi(at->path().filename().c_str());
    if (found != fd && ::fstat(found, &other) == 0 && ::fstat(fd, &mine) == 0 && other.st_ino == mine.st_ino &&
        other.st_dev == mine.st_dev)
      return true;
  }
  return false;
}

/// Returns true if the run repeats what a line reports.
bool will_be_repeated(const std::string& type, const nlohmann::json& line, const GoesOnAt& at) {
  const auto step = static_cast<std::uint64_t>(std::max(0.0, number(line, "step")));
  if (type == "valid" && at.update == 0) return true;
  if (type == "train" || type == "valid" || type == "sample") return step > at.update;
  // An update that was left out has the number of the next update. A left-out update is not repeated if the run's position in
  // the data is already past the sequences of that update.
  return type == "skip" &&
         (step > at.update + 1 || (step == at.update + 1 && number(line, "sequences") > static_cast<double>(at.sequences)));
}

}  // namespace

void MetricsFile::take(double patience_s) {
  if (!is_plain_ || taken_) return;
  WaitTimer waited;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {  // other errors: the file system has no locks
    if (has_another(fd_)) break;
    if (waited.seconds() < patience_s) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    const std::string folder = newest_save_folder(path_);
    throw RunError(
        format("{} is being written by another run{}, and the lines of two runs in one file are mixed; wait until "
               "that run ends, or give another --log-file",
               path_.string(), folder.empty() ? "" : format(" (its newest lines are of the run that saves to {})", folder)));
  }
  taken_ = true;
  if (ends_in_mid_line(path_)) static_cast<void>(write_all(fd_, "\n"));
}

TakenUp take_up_metrics(const std::filesystem::path& path, const GoesOnAt& at, bool only_look) {
  TakenUp taken;
  if (kind_of(path) != PathKind::file) return taken;  // a terminal or a pipe has no older lines
  std::vector<std::pair<std::uint64_t, std::string>> marks;
  Segment segment;
  bool came_to_start = false;
  const InputFile file(path);
  look_backwards(file, [&](std::uint64_t place, std::string_view text) {
    const nlohmann::json line = parse_json(text);
    if (!line.is_object() || !line.contains("type") || !line["type"].is_string()) return true;
    const std::string type = line["type"];
    if (type == "scheduler") return true;  // the job scripts write it between two starts
    const bool lost = will_be_repeated(type, line, at);
    segment.see(type, line, lost);
    if (!lost && number(line, "step") == static_cast<double>(at.update)) {
      if (type == "valid" && !segment.loss) segment.loss = number_at(line, "loss");
      segment.sampled |= type == "sample";
    }
    if (lost) {
      const std::string now = format("\"type\":\"{}\"", type);  // it is replaced by a text of the same length
      if (const std::size_t where = text.find(now); where != text.npos)
        segment.marks.emplace_back(place + where, format("{:<{}}", "\"type\":\"lost\"", now.size()));
    }
    if (type != "start") return true;
    if (!is_start_of(line, at.save_dir)) {  // the lines in `segment` belong to another run
      segment = {};
      return true;
    }
    segment.end(line);
    taken.clock_went_back = taken.clock_went_back || segment.clock_went_back;
    if (!std::exchange(came_to_start, true)) {
      taken.before = segment.spent;
      if (line.contains("so_far")) taken.before += time_spent_from_json(line["so_far"]);
      if (segment.last_time > 0) {
        taken.before.between_s += std::max(0.0, at.start_time - segment.last_time);
        taken.clock_went_back = taken.clock_went_back || at.start_time < segment.last_time - clock_step_s;
      }
    } else {  // `so_far` of a later start line counts the marked updates as useful
      taken.before.useful_s -= segment.marked_s;
      taken.before.lost_s += segment.marked_s;
    }
    marks.insert(marks.end(), segment.marks.begin(), segment.marks.end());
    if (!taken.loss) taken.loss = segment.loss;
    taken.sampled |= segment.sampled;
    return !std::exchange(segment, {}).came_to_update;
  });
  taken.lost = marks.size();
  if (marks.empty() || only_look) return taken;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);  // a file opened with O_APPEND can only be written at its end
  if (fd < 0) {
    taken.problem = std::strerror(errno);
    return taken;
  }
  bool written = true;
  for (const auto& [place, text] : marks)
    written = written && ::pwrite(fd, text.data(), text.size(), static_cast<off_t>(place)) == static_cast<ssize_t>(text.size());
  const int why = errno;
  ::fdatasync(fd);
  ::close(fd);
  if (!written) taken.problem = std::strerror(why);
  return taken;
}

}  // namespace fsdp
