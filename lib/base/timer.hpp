// Wall-clock seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace fsdp {

/// Nanoseconds on this node's monotonic clock, which all processes of the node share.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Timer {
 public:
  /// Seconds since construction or the last restart().
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Measures how long a polling loop has waited for other ranks, without the time in which the job was suspended (scontrol
/// suspend, SIGSTOP). The loop must call seconds() at least once a second. Between two calls at most one second counts: after a
/// longer gap, the job was suspended.
class WaitTimer {
 public:
  /// The seconds waited since construction.
  double seconds() {
    const std::int64_t now = now_ns();
    waited_ns_ += std::min(now - last_look_ns_, std::int64_t{1'000'000'000});
    last_look_ns_ = now;
    return 1e-9 * static_cast<double>(waited_ns_);
  }

 private:
  std::int64_t last_look_ns_ = now_ns(), waited_ns_ = 0;
};

/// Adds the lifetime of this object, in seconds, to the variable `seconds` when it is destroyed.
class AddTime {
 public:
  explicit AddTime(double& seconds) : seconds_(seconds) {}
  AddTime(const AddTime&) = delete;
  ~AddTime() { seconds_ += timer_.seconds(); }

 private:
  double& seconds_;
  Timer timer_;
};

}  // namespace fsdp
