#include "train/signals.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

// Signals belong to the process, and so do these; several watches (logical ranks of one process) read the same counts.
std::atomic<int> stops{0}, saves{0}, last_stop{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not lock");

void on_stop(int signal) {
  last_stop = signal;
  ++stops;
}
void on_save(int) { ++saves; }

struct Watched {
  int signal;
  const char* name;
  void (*handler)(int);
  int flags;
};
// A second Ctrl-C finds the default again and ends the process at once.
constexpr std::array<Watched, 4> watched = {{{SIGTERM, "SIGTERM", on_stop, SA_RESTART},
                                             {SIGINT, "SIGINT", on_stop, SA_RESTART | static_cast<int>(SA_RESETHAND)},
                                             {SIGUSR1, "SIGUSR1", on_stop, SA_RESTART},
                                             {SIGUSR2, "SIGUSR2", on_save, SA_RESTART}}};

std::mutex watches_mutex;
int watches = 0;
std::array<struct sigaction, watched.size()> before;

}  // namespace

SignalWatch::SignalWatch(std::filesystem::path save_dir, bool looks_at_files) : save_dir_(std::move(save_dir)), looks_at_files_(looks_at_files) {
  const std::lock_guard lock(watches_mutex);
  if (watches++ == 0)
    for (std::size_t i = 0; i < watched.size(); ++i) {
      struct sigaction action {};
      action.sa_handler = watched[i].handler;
      action.sa_flags = watched[i].flags;
      sigemptyset(&action.sa_mask);
      check_errno(sigaction(watched[i].signal, &action, &before[i]) == 0, "sigaction");
    }
  stops_at_start_ = stops;
  saves_seen_ = saves;
}

SignalWatch::~SignalWatch() {
  const std::lock_guard lock(watches_mutex);
  if (--watches == 0)
    for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i].signal, &before[i], nullptr);
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
  Requests requests;
  requests.stop = stops != stops_at_start_ || stop_file_;
  const int now = saves;
  requests.save = now != saves_seen_ || save_file_;
  saves_seen_ = now;
  return requests;
}

std::string SignalWatch::stop_reason() const {
  if (stops != stops_at_start_)
    for (const Watched& signal : watched)
      if (signal.signal == last_stop) return signal.name;
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
