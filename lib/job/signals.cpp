#include "job/signals.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/terminal.hpp"

namespace fsdp {

namespace {

// Signals are sent to the process, so the counts of signals are global. Several SignalWatches (of logical ranks in one process)
// read the counts.
std::atomic<int> stops{0}, saves{0}, last_stop{0};  // written by the thread that receives signals

constexpr std::array<std::pair<int, const char*>, 3> stop_signals = {
    {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}}};

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const auto& [signal, name] : stop_signals) sigaddset(&set, signal);
  sigaddset(&set, SIGUSR2);
  return set;
}

std::atomic<int> watches{0};
std::atomic<int> stops_before{0}, saves_before{0};  // the counts when the last watch ended, from which the next watch counts

/// The message of the leading watch for the first signal to stop, printed by the thread that receives signals.
struct Announcement {
  std::FILE* out;
  Outlook outlook;
};
std::mutex announcing;
std::optional<Announcement> announcement;  // empty if there is no leading watch, or once the message was printed

const char* name_of(int signal) {
  for (const auto& [number, name] : stop_signals)
    if (number == signal) return name;
  return "a signal";
}

void announce_stop(int signal) {
  const std::lock_guard lock(announcing);
  if (!announcement) return;
  const auto& [out, outlook] = *announcement;
  const std::string which = outlook.update == 0 ? "the first update of this start" : format("update {}", outlook.update);
  std::string text = format("{}: saving after {}, then stopping", name_of(signal), which);
  if (outlook.update_s >= 0) text += format("; the last update took {}", format_duration(outlook.update_s));
  if (outlook.save_s >= 0) text += format("; the last save took {}", format_duration(outlook.save_s));
  text += "\n";
  if (Terminal(out).draws()) text.insert(0, "\r\x1b[K");  // overwrites a progress bar, which is drawn again
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
  announcement.reset();
}

/// Unblocks and raises the signal, so that its default action ends the process.
void act_by_default(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
}

/// Receives the signals of the process one at a time, until the process ends.
void wait_for_signals() {
  const sigset_t set = watched();
  bool interrupted = false, terminated = false;
  for (int signal; sigwait(&set, &signal) == 0;) {
    if (signal == SIGINT && (interrupted || watches == 0)) act_by_default(signal);
    if (signal == SIGTERM && terminated && watches == 0) act_by_default(signal);
    if (signal == SIGUSR2) {
      ++saves;
    } else {
      interrupted = interrupted || signal == SIGINT, terminated = terminated || signal == SIGTERM;
      last_stop = signal;
      ++stops;
      announce_stop(signal);
    }
  }
}

}  // namespace

void hold_signals() {
  const sigset_t set = watched();
  const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr);
  expect(error == 0, "signals can be held");
  static std::once_flag once;
  std::call_once(once, [] { std::thread(wait_for_signals).detach(); });
}

SignalWatch::SignalWatch(std::filesystem::path save_dir, bool leads, std::FILE* out)
    : save_dir_(std::move(save_dir)), leads_(leads), stops_at_start_(stops_before), saves_at_start_(saves_before) {
  ++watches;
  hold_signals();
  if (leads_ && out) {
    const std::lock_guard lock(announcing);
    announcement = {out, {}};
  }
  if (stops != stops_at_start_) announce_stop(last_stop);  // the signal came before this watch
  poll();
}

std::string SignalWatch::left_over() const {
  if (stop_file_)
    return format("{} existed before the start: the run saves and stops after its first update", (save_dir_ / "stop").string());
  return save_file_ ? format("{} existed before the start: the run saves after its first update", (save_dir_ / "save").string())
                    : "";
}

SignalWatch::~SignalWatch() {
  if (leads_) {
    const std::lock_guard lock(announcing);
    announcement.reset();
  }
  if (--watches == 0) stops_before = stops.load(), saves_before = saves.load();
}

bool SignalWatch::look_for(const char* name) const {
  std::error_code ignored;  // an unreadable folder is reported by the next save
  return std::filesystem::is_regular_file(save_dir_ / name, ignored);
}

void SignalWatch::expect(const Outlook& outlook) {
  const std::lock_guard lock(announcing);
  if (leads_ && announcement) announcement->outlook = outlook;
}

Requests SignalWatch::poll() {
  if (leads_ && timer_.seconds() >= next_look_s_) {
    next_look_s_ = timer_.seconds() + 1;
    stop_file_ = stop_file_ || look_for("stop");
    if (!save_file_ && !save_stays_ && look_for("save")) save_file_ = true, ++save_files_;
  }
  return {static_cast<std::size_t>(stops - stops_at_start_) + stop_file_,
          static_cast<std::size_t>(saves - saves_at_start_) + save_files_};
}

std::string SignalWatch::stop_reason() const {
  if (stops != stops_at_start_) return name_of(last_stop);
  return stop_file_ ? format("the file {}", (save_dir_ / "stop").string()) : "another rank";
}

std::string SignalWatch::remove_request(const char* name, const char* consequence) const {
  std::error_code error;
  std::filesystem::remove(save_dir_ / name, error);
  return error ? format("{} could not be removed ({}): {}", (save_dir_ / name).string(), error.message(), consequence) : "";
}

std::string SignalWatch::honoured_stop() {
  return stop_file_ ? remove_request("stop", "until it is gone, every start of this run stops after one update") : "";
}

std::string SignalWatch::honoured_save() {
  if (!std::exchange(save_file_, false)) return "";
  const std::string problem = remove_request("save", "this run does not act on it again");
  save_stays_ = !problem.empty();
  return problem;
}

}  // namespace fsdp
