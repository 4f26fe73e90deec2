// The sums over an update's gradient and loss, and the gradient norm that the optimizer reads. During an update these numbers
// stay in device memory, and only kernels access them: the device, not the host, decides whether the parameters change.
#pragma once

#include <cstdint>
#include <limits>

#include "device/device.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/loss_sum.hpp"

namespace fsdp::kernels {

/// The norm of an update's gradient, and the values derived from it.
struct GradientNorm {
  double norm = 0;          // the norm of the stored gradient, which is multiplied by the loss scale
  double scale = 1;         // the factor by which optimizers multiply the gradient: clipping and the inverse loss scale
  std::int64_t finite = 1;  // 0: the update is skipped (values are not finite, or exceed a limit of UpdateRules)
};

/// The inputs of gradient_norm() that do not come from the sums.
struct UpdateRules {
  double loss_scale = 1;  // the factor by which the stored gradient is too large
  double clip_norm = 0;   // the largest norm, as in torch.nn.utils.clip_grad_norm_; 0: no limit
  double tokens = 1;      // the number of tokens in the loss sum
  // Limits of the mean loss and of the norm before clipping: above them the update is skipped.
  double most_loss = std::numeric_limits<double>::infinity(), most_norm = std::numeric_limits<double>::infinity();
};

struct UpdateSums {
  LossSum loss;       // the sum over this rank's micro-batches; the caller adds all ranks' sums before gradient_norm()
  ExactSum squares;   // the sum over this rank's part of the gradient; the caller adds all ranks' sums before gradient_norm()
  GradientNorm norm;  // computed by gradient_norm()
};

/// Sets all sums to zero, at the start of an update.
void clear(Stream& stream, UpdateSums& sums);
/// Computes sums.norm from sums.squares and sums.loss.
void gradient_norm(Stream& stream, UpdateSums& sums, const UpdateRules& rules);

}  // namespace fsdp::kernels
