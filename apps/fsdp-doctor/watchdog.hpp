// Ends the program if it hangs where no other rank notices: in a call to a dead file system, or while MPI starts.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fsdp {

/// A thread that calls `expired` if a stage exceeds its time limit before the next stage begins or this object is destroyed.
/// `expired` must end the process.
class Watchdog {
 public:
  using Expired = std::function<void(const std::string& stage, double limit_s)>;
  explicit Watchdog(Expired expired);
  Watchdog(const Watchdog&) = delete;
  ~Watchdog();

  /// Begins a stage of at most `limit_s` seconds; 0: no limit.
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
