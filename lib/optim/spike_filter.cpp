#include "optim/spike_filter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fsdp {

namespace {

/// Adds a value to the moments; see Finch 2009, "Incremental calculation of weighted mean and variance", section 9.
void add(SpikeFilterState::Moments& moments, double value, double weight) {
  const double difference = value - moments.mean, step = weight * difference;
  moments.mean += step;
  moments.variance = (1 - weight) * (moments.variance + difference * step);
}

}  // namespace

SpikeLimits SpikeFilter::limits() const {
  const double none = std::numeric_limits<double>::infinity();
  if (state_.updates < warmup) return {none, none};
  const auto limit = [&](const SpikeFilterState::Moments& of) { return of.mean + sigmas_ * std::sqrt(of.variance); };
  return {limit(state_.loss), limit(state_.norm)};
}

void SpikeFilter::update(double loss, double norm) {
  const SpikeLimits most = limits();
  const double weight = 1 / static_cast<double>(std::min(++state_.updates, horizon));
  add(state_.loss, std::min(loss, most.loss), weight);
  add(state_.norm, std::min(norm, most.norm), weight);
}

}  // namespace fsdp
