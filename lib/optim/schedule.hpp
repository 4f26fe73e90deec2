// Learning-rate schedules: pure functions of the update's number, so that a resumed run has no state to restore.
#pragma once

#include <cstdint>

namespace fsdp {

enum class Decay { fixed, polynomial, cosine, inverse_sqrt, wsd };

struct Schedule {
  Decay decay = Decay::fixed;
  double learning_rate = 1e-3;
  std::uint64_t warmup = 0;         // W: updates with lr u / W
  std::uint64_t total = 0;          // U: where the decay ends; unused by `fixed`, and by inverse_sqrt if it is 0
  double end = 0;                   // rate at U and after it
  double power = 1;                 // of the polynomial
  std::uint64_t decay_updates = 0;  // D of wsd
};

/// The rate of update u = 1, 2, .... With W = warmup and U = total, after the warm-up:
///   polynomial  end + (lr - end) (1 - (u-W)/(U-W))^power        cosine  end + (lr - end) (1 + cos(pi (u-W)/(U-W))) / 2
///   inverse_sqrt  lr sqrt(W/u), W at least 1                       wsd     lr until U - D, then end + (lr - end) (U-u)/D
/// After U rates stay as they are at U. Requires W <= U unless fixed or inverse_sqrt, and W + D <= U of wsd (warm-up, stable,
/// decay); with W = U the rate is `end` after U.
double learning_rate(const Schedule& schedule, std::uint64_t update);

}  // namespace fsdp
