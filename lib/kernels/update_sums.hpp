// What an update sums up over its gradient, and what the optimizer reads of it. All of it lies where kernels work, and during
// an update kernels alone touch it: whether the parameters change is decided there, not on the host.
#pragma once

#include <cstdint>
#include <limits>

#include "device/device.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/loss_sum.hpp"

namespace fsdp::kernels {

/// The norm of an update's gradient, and what follows from it.
struct GradientNorm {
  double norm = 0;          // of the gradient as it lies in memory
  double scale = 1;         // what optimizers multiply it by: clipping, with the loss scale undone
  std::int64_t finite = 1;  // 0: gradient or loss are not finite or above their limits, and no parameter or state changes
};

/// What gradient_norm() decides by.
struct UpdateRules {
  double loss_scale = 1;  // the gradient is so many times what it should be
  double clip_norm = 0;   // the most that its norm may be, as torch.nn.utils.clip_grad_norm_ limits it; 0: any
  double tokens = 1;      // whose losses are in the sum
  // Of the mean loss and of the norm before clipping: with more, the update is not made.
  double most_loss = std::numeric_limits<double>::infinity(), most_norm = std::numeric_limits<double>::infinity();
};

struct UpdateSums {
  LossSum loss;       // over the micro-batches; from gradient_norm() on over all ranks, too
  ExactSum squares;   // of the gradient; the same
  GradientNorm norm;  // gradient_norm() writes it
};

/// All zeros: an update begins.
void clear(Stream& stream, UpdateSums& sums);
/// sums.norm from sums.squares and sums.loss.
void gradient_norm(Stream& stream, UpdateSums& sums, const UpdateRules& rules);

}  // namespace fsdp::kernels
