#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {

double learning_rate(const Schedule& schedule, std::uint64_t update) {
  const auto& [decay, lr, warmup, total, end, power, decay_updates, cycles] = schedule;
  if (update <= warmup) return lr * static_cast<double>(update) / static_cast<double>(std::max<std::uint64_t>(warmup, 1));
  if (decay == Decay::fixed) return lr;
  if (decay == Decay::inverse_sqrt) {
    const std::uint64_t at = total > 0 ? std::min(update, std::max(total, warmup)) : update;
    return lr * std::sqrt(static_cast<double>(std::max<std::uint64_t>(warmup, 1)) / static_cast<double>(at));
  }
  if (update >= total) return end;
  if (decay == Decay::wsd) {
    const std::uint64_t left = total - update;
    return left >= decay_updates ? lr : end + (lr - end) * static_cast<double>(left) / static_cast<double>(decay_updates);
  }
  double part = static_cast<double>(update - warmup) / static_cast<double>(total - warmup);
  if (decay == Decay::linear) return end + (lr - end) * (1 - part);
  if (decay == Decay::polynomial) return end + (lr - end) * std::pow(1 - part, power);
  if (decay == Decay::cosine_with_restarts) part = std::fmod(static_cast<double>(cycles) * part, 1.0);
  return end + (lr - end) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace fsdp
