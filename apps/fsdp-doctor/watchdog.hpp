// Ends the program if it hangs in a place that the timeouts of collectives do not cover: in a call to a dead file system, or
// while MPI starts.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fsdp {

/// A thread that watches the program's current stage, such as a check. If a stage takes longer than its time limit, the thread
/// calls `expired`, which must end the process.
class Watchdog {
 public:
  using Expired = std::function<void(const std::string& stage, double limit_s)>;
  explicit Watchdog(Expired expired);
  Watchdog(const Watchdog&) = delete;
  ~Watchdog();

  /// Ends the current stage and begins another, of at most `limit_s` seconds; 0 means no limit.
  void begin(std::string stage, double limit_s);

 private:
  void watch();

  Expired expired_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string stage_;
  double limit_s_ = 0;
  std::size_t stages_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace fsdp
