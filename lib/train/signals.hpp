// Requests from outside while training: SIGTERM, SIGINT or SIGUSR1 or a file `stop` in the save folder: save and stop. SIGUSR2
// or a file `save`: save and go on. A request may reach one rank only: all ranks agree on the most that any has been asked
// before anyone acts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/timer.hpp"

namespace fsdp {

/// How often this rank has been asked since its watch began. A launcher's signal reaches every rank, but some an update later
/// than others: the loop takes the largest count of all ranks, and acts when that has grown, so that one signal is one request.
struct Requests {
  std::size_t stop = 0, save = 0;
};

/// Holds the four signals back in this thread and in those that it starts from now on, and starts one thread that takes them:
/// call it first in main(). So no handler runs in the midst of a computation: oneDNN 2.6.3's AVX-512 code corrupts the heap
/// when one does on its thread (seen within seconds at 2 kHz). While there is no SignalWatch, SIGUSR1, SIGUSR2 and a first
/// SIGTERM wait for one: a job that Slurm stops while MPI starts can still say that it was stopped. SIGINT and a second SIGTERM
/// end the process then; a second SIGINT always does.
void hold_signals();

/// What is said when a signal asks to stop: the update after which the run saves, and how long the last update and the last
/// save took, in seconds; negative where there was none.
struct Outlook {
  std::uint64_t update = 0;  // 0: the first has not begun
  double update_s = -1, save_s = -1;
};

class SignalWatch {
 public:
  /// Only the rank that `leads` (rank 0) looks for the files, at most once a second, and says on `out` that a signal to stop
  /// has come, at once: the run itself may need minutes until it has done the update under way and saved.
  SignalWatch(std::filesystem::path save_dir, bool leads, std::FILE* out = stderr);
  SignalWatch(const SignalWatch&) = delete;
  ~SignalWatch();

  /// Counts that never fall.
  Requests poll();
  /// What to say from now on. Only the rank that leads says it.
  void expect(const Outlook& outlook);
  /// "SIGUSR1", "the file checkpoints/stop", or "another rank" if this rank has not been asked to stop.
  std::string stop_reason() const;
  /// Requests that lay in the save folder when this began, in words; empty if none did. They are honoured, too.
  std::string left_over() const;
  /// Removes the file behind a request once it has been honoured: everything is saved. Returns why that was not possible, in
  /// words; empty if it was, or there is none.
  std::string honoured_stop();
  std::string honoured_save();

 private:
  bool look_for(const char* name) const;
  std::string remove_request(const char* name, const char* consequence) const;

  std::filesystem::path save_dir_;
  bool leads_;
  int stops_at_start_, saves_at_start_;
  bool stop_file_ = false, save_file_ = false, save_stays_ = false;
  std::size_t save_files_ = 0;  // seen so far
  double next_look_s_ = 0;
  Timer timer_;
};

}  // namespace fsdp
