// Skips updates with a spike in the loss or in the gradient's norm, so that one bad batch does no harm. PaLM's authors
// restarted from a checkpoint before each spike and skipped the batches around it (Chowdhery et al. 2022, section 5.1). Here,
// as in OLMo-core's optimizers that skip steps, the update itself is skipped if either value is more than a given number of
// standard deviations above its mean over recent updates. Every rank decides the same, since loss and norm are global.
#pragma once

#include <cstdint>

namespace fsdp {

/// The state in a checkpoint.
struct SpikeFilterState {
  /// The exponential moving mean and variance. Over the first updates, they are the plain mean and variance.
  struct Moments {
    double mean = 0, variance = 0;
    bool operator==(const Moments&) const = default;
  };
  std::uint64_t updates = 0;  // the number of updates so far, including skipped ones
  Moments loss, norm;
  bool operator==(const SpikeFilterState&) const = default;
};

/// An update is skipped if its loss or norm is above the limit.
struct SpikeLimits {
  double loss, norm;
};

class SpikeFilter {
 public:
  /// `horizon`: the approximate number of updates in the averages. `warmup`: the number of updates before the first that can be
  /// skipped.
  static constexpr std::uint64_t horizon = 128, warmup = 64;

  /// `sigmas`: the number of standard deviations above the mean from which on an update is skipped.
  explicit SpikeFilter(double sigmas) : sigmas_(sigmas) {}

  /// The limits for the next update. They are infinite during the first `warmup` updates.
  SpikeLimits limits() const;
  /// Call this after each update whose loss and norm are finite, even if the update was skipped. Values above the limit are
  /// counted as the limit: so one spike does not hide the next, and a loss that stays high becomes the normal one after some
  /// updates.
  void update(double loss, double norm);

  const SpikeFilterState& state() const { return state_; }
  void restore(const SpikeFilterState& state) { state_ = state; }

 private:
  double sigmas_;
  SpikeFilterState state_;
};

}  // namespace fsdp
