#include <cmath>

#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void adamw(Stream& stream, float* parameter, float* m, float* v, const float* gradient, std::size_t n, const AdamWStep& step) {
  // Per-step factors in double: 1 - beta2 in single precision would be off by 1e-5 of itself.
  const AdamWBody body{.parameter = parameter,
                       .m = m,
                       .v = v,
                       .gradient = gradient,
                       .n = n,
                       .decay = static_cast<float>(1 - step.learning_rate * step.weight_decay),
                       .beta1 = static_cast<float>(step.beta1),
                       .one_minus_beta1 = static_cast<float>(1 - step.beta1),
                       .beta2 = static_cast<float>(step.beta2),
                       .one_minus_beta2 = static_cast<float>(1 - step.beta2),
                       .step_size = static_cast<float>(step.learning_rate / step.bias_correction1),
                       .inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(step.bias_correction2)),
                       .eps = static_cast<float>(step.eps),
                       .gradient_scale = static_cast<float>(step.gradient_scale)};
  launch(stream, body, (n + flat_block - 1) / flat_block);
}

}  // namespace fsdp::kernels
