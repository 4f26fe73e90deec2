// Learning-rate schedules: pure functions of the number of the update, so that a resumed run has no state to restore.
#pragma once

#include <cmath>
#include <cstdint>

namespace fsdp {

/// The form of the learning rate after the warm-up: see learning_rate().
enum class Decay { fixed, polynomial, cosine, inverse_sqrt, wsd, linear, cosine_with_restarts };

/// The settings of a schedule.
struct Schedule {
  Decay decay = Decay::fixed;       // the form after the warm-up
  double learning_rate = 1e-3;      // lr: the largest rate
  std::uint64_t warmup = 0;         // W: linear warm-up over this many updates
  std::uint64_t total = 0;          // U: the last update of the decay; not used by `fixed`; if 0, `inverse_sqrt` has no end
  double end = 0;                   // the rate from U on; not for `fixed` and `inverse_sqrt`
  double power = 1;                 // for `polynomial`
  std::uint64_t decay_updates = 0;  // D, for `wsd`
  std::uint64_t cycles = 1;         // N, for `cosine_with_restarts`
};

/// Returns true if the rate falls to `end` at update `total`.
inline bool has_end(const Schedule& schedule) {
  return schedule.decay != Decay::fixed && schedule.decay != Decay::inverse_sqrt;
}

/// Returns the learning rate of update u = 1, 2, .... It depends on W = warmup, U = total and D = decay_updates. During the
/// warm-up, u <= W, it is lr * u / W. After the warm-up it is:
///   fixed         lr
///   polynomial    end + (lr - end) * (1 - (u - W) / (U - W))^power
///   cosine        end + (lr - end) * (1 + cos(pi * (u - W) / (U - W))) / 2
///   linear        as polynomial with power 1
///   cosine_with_restarts  as cosine, but with the fraction of N * (u - W) / (U - W) in place of (u - W) / (U - W)
///   inverse_sqrt  lr * sqrt(max(W, 1) / u)
///   wsd           lr until U - D, then end + (lr - end) * (U - u) / D  (warm-up, stable, decay)
/// After U the rate keeps its value at U, except that it is `end` if W = U. Requires W <= U unless the schedule has no end
/// (has_end()), and W + D <= U for `wsd`.
double learning_rate(const Schedule& schedule, std::uint64_t update);

/// The updates of a warm-up that takes the share `ratio` of `total` updates, rounded up, as in transformers' Trainer.
inline std::uint64_t warmup_of(double ratio, std::uint64_t total) {
  return static_cast<std::uint64_t>(std::ceil(static_cast<double>(total) * ratio));
}

}  // namespace fsdp
