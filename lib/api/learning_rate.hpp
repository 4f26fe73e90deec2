// The learning rates of fsdp-train's schedules, for a training loop of the user's own.
#pragma once

#include <cstdint>

#include "optim/schedule.hpp"

namespace fsdp {

/// The learning rate as a function of the number of the update, so that a resumed run has no state to restore:
///   const LearningRate rate({.decay = Decay::cosine, .learning_rate = 3e-3, .warmup = 100, .total = 1000});
///   sharded.step(rate(sharded.updates() + 1), fill);
class LearningRate {
 public:
  /// Throws UserError if the schedule is not valid: for example, if its warm-up is longer than its total.
  explicit LearningRate(const Schedule& schedule);
  /// `update` counts from 1. The formulas are in optim/schedule.hpp.
  double operator()(std::uint64_t update) const { return learning_rate(schedule_, update); }

 private:
  Schedule schedule_;
};

}  // namespace fsdp
