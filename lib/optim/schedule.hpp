// Learning-rate schedules: pure functions of the update's number, so that a resumed run has no state to restore.
#pragma once

#include <cstdint>

namespace fsdp {

enum class Decay { fixed, polynomial, cosine };

struct Schedule {
  Decay decay = Decay::fixed;
  double learning_rate = 1e-3;
  std::uint64_t warmup = 0;  // W: updates with lr u / W
  std::uint64_t total = 0;   // U: where the decay ends; unused by `fixed`
  double end = 0;            // rate at U and after it
  double power = 1;          // of the polynomial
};

/// The rate of update u = 1, 2, .... With W = warmup and U = total, after the warm-up:
///   polynomial  end + (lr - end) (1 - (u-W)/(U-W))^power        cosine  end + (lr - end) (1 + cos(pi (u-W)/(U-W))) / 2
/// Requires W <= U unless fixed; with W = U the rate is `end` after U.
double learning_rate(const Schedule& schedule, std::uint64_t update);

}  // namespace fsdp
