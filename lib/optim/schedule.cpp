#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {

double learning_rate(const Schedule& schedule, std::uint64_t update) {
  const auto& [decay, lr, warmup, total, end, power] = schedule;
  if (update <= warmup) return lr * static_cast<double>(update) / static_cast<double>(std::max<std::uint64_t>(warmup, 1));
  if (decay == Decay::fixed) return lr;
  if (update >= total) return end;
  const double part = static_cast<double>(update - warmup) / static_cast<double>(total - warmup);
  if (decay == Decay::polynomial) return end + (lr - end) * std::pow(1 - part, power);
  return end + (lr - end) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace fsdp
