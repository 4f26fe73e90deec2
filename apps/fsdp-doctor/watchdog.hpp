// An end for what may hang where nobody else notices: a call to a dead file system, or MPI's own start.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fsdp {

/// A thread that calls `expired(stage)` if a stage has not been followed by the next one, or by the end of this object, in its
/// time. What it calls ends the process.
class Watchdog {
 public:
  using Expired = std::function<void(const std::string& stage, double limit_s)>;
  explicit Watchdog(Expired expired);
  Watchdog(const Watchdog&) = delete;
  ~Watchdog();

  /// From now on this process is in this stage, for so many seconds at most; 0: for ever.
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
