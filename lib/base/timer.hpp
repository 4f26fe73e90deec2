// Wall-clock seconds.
#pragma once

#include <chrono>

namespace fsdp {

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
