#include "train/signals.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

// Signals belong to the process, and so do these; several watches (logical ranks of one process) read the same counts.
std::atomic<int> stops{0}, saves{0}, last_stop{0};  // written by the thread that takes signals

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
std::atomic<int> stops_before{0}, saves_before{0};  // counts when the last watch ended: what came since is for the next one

/// Ends the process as if the signal had never been held.
void act_by_default(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
}

/// Takes the signals of the process, one at a time, for as long as it lives.
void wait_for_signals() {
  const sigset_t set = watched();
  bool interrupted = false;
  for (int signal; sigwait(&set, &signal) == 0;) {
    // Before there is a watch, launchers' requests wait for it; an interrupt does not.
    const bool may_wait = watches > 0 || signal == SIGUSR1 || signal == SIGUSR2;
    if (!may_wait || (signal == SIGINT && interrupted)) act_by_default(signal);
    if (signal == SIGUSR2) {
      ++saves;
    } else {
      interrupted = interrupted || signal == SIGINT;
      last_stop = signal;
      ++stops;
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

SignalWatch::SignalWatch(std::filesystem::path save_dir, bool looks_at_files)
    : save_dir_(std::move(save_dir)),
      looks_at_files_(looks_at_files),
      stops_at_start_(stops_before),
      saves_at_start_(saves_before) {
  ++watches;
  hold_signals();
  poll();
}

std::string SignalWatch::left_over() const {
  if (stop_file_)
    return format("{} was there before the start: the run saves and stops after its first update",
                  (save_dir_ / "stop").string());
  return save_file_
             ? format("{} was there before the start: the run saves after its first update", (save_dir_ / "save").string())
             : "";
}

SignalWatch::~SignalWatch() {
  if (--watches == 0) stops_before = stops.load(), saves_before = saves.load();
}

bool SignalWatch::look_for(const char* name) const {
  std::error_code ignored;  // an unreadable folder shows when saving
  return std::filesystem::is_regular_file(save_dir_ / name, ignored);
}

Requests SignalWatch::poll() {
  if (looks_at_files_ && timer_.seconds() >= next_look_s_) {
    next_look_s_ = timer_.seconds() + 1;
    stop_file_ = stop_file_ || look_for("stop");
    if (!save_file_ && !save_stays_ && look_for("save")) save_file_ = true, ++save_files_;
  }
  return {static_cast<std::size_t>(stops - stops_at_start_) + stop_file_,
          static_cast<std::size_t>(saves - saves_at_start_) + save_files_};
}

std::string SignalWatch::stop_reason() const {
  if (stops != stops_at_start_)
    for (const auto& [signal, name] : stop_signals)
      if (signal == last_stop) return name;
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
  const std::string problem = remove_request("save", "it asks for nothing more in this run");
  save_stays_ = !problem.empty();
  return problem;
}

}  // namespace fsdp
