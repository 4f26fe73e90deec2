// Requests from outside during training. SIGTERM, SIGINT, SIGUSR1 or a file `stop` in the save folder asks the run to save and
// stop. SIGUSR2 or a file `save` asks the run to save and continue. A request may reach only one rank, so all ranks exchange
// how many requests they have received, and act on the maximum.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/timer.hpp"

namespace fsdp {

/// The number of requests to this rank since its SignalWatch was constructed. A signal from a launcher reaches every rank, but
/// may reach some ranks an update later than others. The loop therefore takes the maximum over all ranks and acts when the
/// maximum has grown, so that one signal counts as one request.
struct Requests {
  std::size_t stop = 0, save = 0;
};

/// Blocks the four signals in this thread and in threads that it starts later, and starts one thread that receives them. Call
/// it first in main(). No signal handler then interrupts a computation: oneDNN 2.6.3's AVX-512 code corrupts the heap if a
/// handler runs on its thread (seen within seconds at 2 kHz). While there is no SignalWatch, SIGUSR1, SIGUSR2 and a first
/// SIGTERM are kept for the next SignalWatch, so a job that Slurm stops while MPI starts can still report that it was stopped.
/// While there is no SignalWatch, SIGINT and a second SIGTERM end the process. A second SIGINT always ends the process.
void hold_signals();

/// The content of the message that follows a signal to stop: the update after which the run saves, and the durations of the
/// last update and the last save in seconds. A duration is negative if there was none.
struct Outlook {
  std::uint64_t update = 0;  // 0: the first update of this start
  double update_s = -1, save_s = -1;
};

class SignalWatch {
 public:
  /// Only the leading rank (`leads`, rank 0) looks for the files `stop` and `save`, at most once a second. It also reports a
  /// signal to stop on `out` at once, because the run may need minutes to finish the update under way and to save; null: it
  /// does not.
  SignalWatch(std::filesystem::path save_dir, bool leads, std::FILE* out = stderr);
  SignalWatch(const SignalWatch&) = delete;
  ~SignalWatch();

  /// The requests so far; the counts never decrease.
  Requests poll();
  /// Sets the content of the message about a signal to stop. Only the leading rank prints it.
  void expect(const Outlook& outlook);
  /// Who asked to stop: "SIGUSR1" or "the file checkpoints/stop", for example, or "another rank" if this rank received no
  /// request.
  std::string stop_reason() const;
  /// Describes a request file that was in the save folder when this watch began; empty if there was none. The run acts on that
  /// request, too.
  std::string left_over() const;
  /// Removes the file `stop` (or `save`), if there is one. Call it after the request was carried out and everything is saved.
  /// Returns why the file could not be removed; empty if it was removed or there is none.
  std::string honoured_stop();
  std::string honoured_save();

 private:
  bool look_for(const char* name) const;
  std::string remove_request(const char* name, const char* consequence) const;

  std::filesystem::path save_dir_;
  bool leads_;
  int stops_at_start_, saves_at_start_;
  bool stop_file_ = false, save_file_ = false, save_stays_ = false;
  std::size_t save_files_ = 0;  // how many `save` files were seen so far
  double next_look_s_ = 0;
  Timer timer_;
};

}  // namespace fsdp
