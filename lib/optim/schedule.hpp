// Learning-rate schedules: pure functions of the number of the update, so that a resumed run has no state to restore.
#pragma once

#include <cstdint>

namespace fsdp {

enum class Decay { fixed, polynomial, cosine, inverse_sqrt, wsd };

struct Schedule {
  Decay decay = Decay::fixed;
  double learning_rate = 1e-3;
  std::uint64_t warmup = 0;         // W: linear warm-up over this many updates
  std::uint64_t total = 0;          // U: the end of the decay; unused by `fixed`, and by `inverse_sqrt` if 0
  double end = 0;                   // the rate at U and after it
  double power = 1;                 // for `polynomial`
  std::uint64_t decay_updates = 0;  // D, for `wsd`
};

/// Returns the rate of update u = 1, 2, .... During the warm-up, u <= W, it is lr u/W. With W = warmup, U = total and D =
/// decay_updates, it is after the warm-up:
///   polynomial  end + (lr - end) (1 - (u-W)/(U-W))^power        cosine  end + (lr - end) (1 + cos(pi (u-W)/(U-W))) / 2
///   inverse_sqrt  lr sqrt(W/u), W at least 1                       wsd     lr until U - D, then end + (lr - end) (U-u)/D
/// After U the rate keeps its value at U. Requires W <= U unless `fixed` or `inverse_sqrt`, and W + D <= U for `wsd` (warm-up,
/// stable, decay). If W = U, the rate is `end` after U.
double learning_rate(const Schedule& schedule, std::uint64_t update);

}  // namespace fsdp
