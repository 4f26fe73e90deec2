#include <cmath>

#include "base/philox.hpp"
#include "kernels/element_update.hpp"

namespace fsdp::kernels {

StateNoise state_noise(std::uint32_t seed, std::uint64_t update, std::size_t parameter, std::size_t first_element) {
  const auto words = philox({static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(update),
                             static_cast<std::uint32_t>(update >> 32), static_cast<std::uint32_t>(RandomSite::optimizer_state)},
                            {seed, 0});
  return {{words[0], words[1]}, first_element};
}

void adam(Stream& stream, const UpdateTarget& target, const AdamStep& step) {
  const auto run = [&]<bool amsgrad>(std::bool_constant<amsgrad>) {
    update_elements(stream, target,
                    AdamRule<amsgrad>{.decay = single(1 - step.learning_rate * step.decay.decoupled),
                                      .l2 = single(step.decay.l2),
                                      .beta1 = single(step.beta1),
                                      .one_minus_beta1 = single(1 - step.beta1),
                                      .beta2 = single(step.beta2),
                                      .one_minus_beta2 = single(1 - step.beta2),
                                      .step_size = single(step.learning_rate / step.bias_correction1),
                                      .inverse_sqrt_correction2 = single(1 / std::sqrt(step.bias_correction2)),
                                      .eps = single(step.eps)});
  };
  if (step.amsgrad)
    run(std::true_type{});
  else
    run(std::false_type{});
}

void sgd(Stream& stream, const UpdateTarget& target, const SgdStep& step) {
  const float learning_rate = single(step.learning_rate), l2 = single(step.l2);
  if (step.momentum == 0) return update_elements(stream, target, SgdRule{1, l2, learning_rate});
  const float momentum = single(step.momentum);
  update_elements(stream, target,
                  MomentumRule{.l2 = l2,
                               .learning_rate = learning_rate,
                               .momentum = momentum,
                               .of_gradient = step.nesterov ? 1.0f : 0.0f,
                               .of_momentum = step.nesterov ? momentum : 1.0f});
}

void descend(Stream& stream, const UpdateTarget& target, double keep, double step) {
  update_elements(stream, target, SgdRule{single(keep), 0, single(step)});
}

void adagrad(Stream& stream, const UpdateTarget& target, const AdagradStep& step) {
  update_elements(stream, target, AdagradRule{single(step.l2), single(step.learning_rate), single(step.eps)});
}

void lion(Stream& stream, const UpdateTarget& target, const LionStep& step) {
  update_elements(stream, target,
                  LionRule{.decay = single(1 - step.learning_rate * step.weight_decay),
                           .learning_rate = single(step.learning_rate),
                           .beta1 = single(step.beta1),
                           .one_minus_beta1 = single(1 - step.beta1),
                           .beta2 = single(step.beta2),
                           .one_minus_beta2 = single(1 - step.beta2)});
}

}  // namespace fsdp::kernels
