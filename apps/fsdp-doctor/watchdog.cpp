#include "fsdp-doctor/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/timer.hpp"

namespace fsdp {

Watchdog::Watchdog(Expired expired) : expired_(std::move(expired)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::begin(std::string stage, double limit_s) {
  {
    const std::lock_guard lock(mutex_);
    stage_ = std::move(stage);
    limit_s_ = limit_s;
    ++stages_;
  }
  changed_.notify_one();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    const std::size_t stage = stages_;
    const auto is_over = [&] { return ended_ || stages_ != stage; };
    const std::chrono::duration<double> between_looks(limit_s_ > 0 ? std::min(limit_s_, 0.5) : 0.5);
    WaitTimer waited;
    while (!is_over() && (limit_s_ <= 0 || waited.seconds() < limit_s_)) changed_.wait_for(lock, between_looks);
    if (!is_over()) return expired_(stage_, limit_s_);
  }
}

}  // namespace fsdp
