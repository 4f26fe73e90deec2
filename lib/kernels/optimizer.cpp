#include <cmath>

#include "base/error.hpp"
#include "base/philox.hpp"
#include "kernels/launch.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

float single(double x) { return static_cast<float>(x); }

template <class State, int states>
ElementMemory<State, states> memory_of(const UpdateTarget& target) {
  ElementMemory<State, states> memory{.parameter = target.parameter,
                                      .state = {},
                                      .gradient = target.gradient,
                                      .n = target.n,
                                      .gradient_scale = single(target.gradient_scale),
                                      .noise = target.noise,
                                      .copy = target.copy,
                                      .copy_type = target.copy_type};
  for (int k = 0; k < states; ++k) memory.state[k] = reinterpret_cast<State*>(target.state[static_cast<std::size_t>(k)]);
  return memory;
}

/// How many "rows" cover the elements: see ElementMemory.
template <class State, int states>
std::size_t rows_of(const ElementMemory<State, states>& memory) {
  const std::size_t lead = sizeof(State) == 2 ? memory.noise.first_element % memory.block : 0;
  return memory.n == 0 ? 0 : (lead + memory.n + memory.block - 1) / memory.block;
}

template <class Rule>
void update(Stream& stream, const UpdateTarget& target, const Rule& rule) {
  const auto run = [&]<class State>(State) {
    const ElementUpdate<Rule, State> body{rule, memory_of<State, Rule::states>(target)};
    launch(stream, body, rows_of(body.memory));
  };
  if constexpr (Rule::states > 0)
    if (target.state_type == DType::bf16) return run(std::uint16_t{});
  expect(target.state_type != DType::f16, "states are fp32 or bf16");
  run(float{});
}

}  // namespace

StateNoise state_noise(std::uint32_t seed, std::uint64_t update, std::size_t parameter, std::size_t first_element) {
  const auto words = philox({static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(update),
                             static_cast<std::uint32_t>(update >> 32), static_cast<std::uint32_t>(RandomSite::optimizer_state)},
                            {seed, 0});
  return {{words[0], words[1]}, first_element};
}

void adam(Stream& stream, const UpdateTarget& target, const AdamStep& step) {
  const auto run = [&]<bool amsgrad>(std::bool_constant<amsgrad>) {
    update(stream, target,
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
  const float learning_rate = single(step.learning_rate), l2 = single(step.decay.l2);
  if (step.momentum == 0)
    return update(stream, target, SgdRule{single(1 - step.learning_rate * step.decay.decoupled), l2, learning_rate});
  expect(step.decay.decoupled == 0, "momentum goes with L2 decay alone");
  const float momentum = single(step.momentum);
  update(stream, target,
         MomentumRule{.l2 = l2,
                      .learning_rate = learning_rate,
                      .momentum = momentum,
                      .of_gradient = step.nesterov ? 1.0f : 0.0f,
                      .of_momentum = step.nesterov ? momentum : 1.0f});
}

void adagrad(Stream& stream, const UpdateTarget& target, const AdagradStep& step) {
  update(stream, target, AdagradRule{single(step.l2), single(step.learning_rate), single(step.eps)});
}

void lion(Stream& stream, const UpdateTarget& target, const LionStep& step) {
  update(stream, target,
         LionRule{.decay = single(1 - step.learning_rate * step.weight_decay),
                  .learning_rate = single(step.learning_rate),
                  .beta1 = single(step.beta1),
                  .one_minus_beta1 = single(1 - step.beta1),
                  .beta2 = single(step.beta2),
                  .one_minus_beta2 = single(1 - step.beta2)});
}

}  // namespace fsdp::kernels
