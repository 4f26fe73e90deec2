#include "train/signals.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

// Signals belong to the process, and so do these; several watches (logical ranks of one process) read the same counts.
std::atomic<int> stops{0}, saves{0}, last_stop{0};

constexpr std::array<std::pair<int, const char*>, 3> stop_signals = {{{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}}};

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const auto& [signal, name] : stop_signals) sigaddset(&set, signal);
  sigaddset(&set, SIGUSR2);
  return set;
}

/// Takes what has come in for this process or thread since the last time.
void take_pending() {
  const sigset_t set = watched();
  const timespec now{0, 0};
  for (int signal; (signal = sigtimedwait(&set, nullptr, &now)) > 0;) {
    if (signal == SIGUSR2) {
      ++saves;
    } else {
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
}

SignalWatch::SignalWatch(std::filesystem::path save_dir, bool looks_at_files) : save_dir_(std::move(save_dir)), looks_at_files_(looks_at_files) {
  hold_signals();
  stops_at_start_ = stops;
  saves_seen_ = saves;
}

bool SignalWatch::look_for(const char* name) {
  std::error_code ignored;  // an unreadable folder shows when saving
  return std::filesystem::exists(save_dir_ / name, ignored);
}

Requests SignalWatch::poll() {
  if (looks_at_files_ && timer_.seconds() >= next_look_s_) {
    next_look_s_ = timer_.seconds() + 1;
    stop_file_ = stop_file_ || look_for("stop");
    save_file_ = look_for("save");
  }
  take_pending();
  Requests requests;
  requests.stop = stops != stops_at_start_ || stop_file_;
  const int now = saves;
  requests.save = now != saves_seen_ || save_file_;
  saves_seen_ = now;
  return requests;
}

std::string SignalWatch::stop_reason() const {
  if (stops != stops_at_start_)
    for (const auto& [signal, name] : stop_signals)
      if (signal == last_stop) return name;
  return stop_file_ ? format("the file {}", (save_dir_ / "stop").string()) : "another rank";
}

void SignalWatch::honoured_stop() {
  std::error_code ignored;
  if (stop_file_) std::filesystem::remove(save_dir_ / "stop", ignored);
}

void SignalWatch::honoured_save() {
  std::error_code ignored;
  if (save_file_) std::filesystem::remove(save_dir_ / "save", ignored);
  save_file_ = false;
}

}  // namespace fsdp
