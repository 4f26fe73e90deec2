// Which updates are left out because their loss or their gradient's norm jumps: one bad batch then does no harm. PaLM's authors
// went back to a checkpoint before each spike and left out the batches around it (Chowdhery et al. 2022, section 5.1); here, as
// in OLMo-core's optimizers that skip steps, the update itself is left out as it comes, if either number lies more than so many
// standard deviations above its mean over the last updates. Every rank decides the same, since loss and norm are global.
#pragma once

#include <cstdint>

namespace fsdp {

/// What a checkpoint holds.
struct SpikeFilterState {
  /// Exponential mean and variance; of the first updates the plain ones.
  struct Moments {
    double mean = 0, variance = 0;
    bool operator==(const Moments&) const = default;
  };
  std::uint64_t updates = 0;  // seen, those that were left out included
  Moments loss, norm;
  bool operator==(const SpikeFilterState&) const = default;
};

/// An update is left out if one of its numbers is above.
struct SpikeLimits {
  double loss, norm;
};

class SpikeFilter {
 public:
  /// Updates over which is averaged, about, and those that are seen before the first can be left out.
  static constexpr std::uint64_t horizon = 128, warmup = 64;

  /// `sigmas`: standard deviations above the mean from which on an update is left out.
  explicit SpikeFilter(double sigmas) : sigmas_(sigmas) {}

  /// Of the next update; infinite while too few have been seen.
  SpikeLimits limits() const;
  /// After each update whose numbers are finite, also if it was left out. Such an update counts as if it lay at the limit: one
  /// spike does not hide the next, and a loss that stays high becomes the usual one after some updates.
  void update(double loss, double norm);

  const SpikeFilterState& state() const { return state_; }
  void restore(const SpikeFilterState& state) { state_ = state; }

 private:
  double sigmas_;
  SpikeFilterState state_;
};

}  // namespace fsdp
