// Wall-clock seconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp {

/// Nanoseconds on this node's monotonic clock, which all of its processes share.
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

/// Adds its own lifetime to `seconds`.
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
