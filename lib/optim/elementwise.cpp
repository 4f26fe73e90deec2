#include "optim/elementwise.hpp"

#include <cmath>

namespace fsdp {

kernels::UpdateTarget target_of(const UnitMemory& memory, const OptimizerSlice& slice, const OptimizerOptions& options,
                                const OptimizerStep& step) {
  kernels::UpdateTarget target{.parameter = memory.parameters + slice.offset,
                               .gradient = memory.gradients + slice.offset,
                               .n = slice.range.size(),
                               .gradient_scale = step.gradient_scale,
                               .state_type = options.state_type,
                               .copy = memory.copy ? memory.copy + slice.offset : nullptr,
                               .copy_type = memory.copy_type};
  for (std::size_t k = 0; k < target.state.size(); ++k)
    if (memory.states[k]) target.state[k] = memory.states[k] + slice.offset * size_of(options.state_type);
  if (options.state_type != DType::f32)
    target.noise = kernels::state_noise(options.seed, step.number, slice.parameter, slice.range.begin);
  return target;
}

namespace {

/// L2 for Adam, else decoupled: AdamW, also as what updates the rest beside Muon.
kernels::Decays decays_of(const OptimizerSlice& slice, const OptimizerOptions& options) {
  const bool decoupled = options.kind != OptimizerKind::adam;
  return {decoupled ? slice.weight_decay : 0, decoupled ? 0 : slice.weight_decay};
}

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step,
            bool amsgrad) {
  const double t = static_cast<double>(step.number);
  for (const OptimizerSlice& slice : memory.slices)
    kernels::adam(stream, target_of(memory, slice, options, step),
                  {.learning_rate = step.learning_rate * slice.learning_rate_scale,
                   .beta1 = options.beta1,
                   .beta2 = options.beta2,
                   .eps = options.eps,
                   .decay = decays_of(slice, options),
                   .bias_correction1 = 1 - std::pow(options.beta1, t),
                   .bias_correction2 = 1 - std::pow(options.beta2, t),
                   .amsgrad = amsgrad});
}

}  // namespace

void update_adam(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  update(stream, memory, options, step, false);
}

void update_amsgrad(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  update(stream, memory, options, step, true);
}

void update_sgd(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices)
    kernels::sgd(stream, target_of(memory, slice, options, step),
                 {.learning_rate = step.learning_rate * slice.learning_rate_scale,
                  .momentum = options.momentum,
                  .nesterov = options.nesterov,
                  .l2 = slice.weight_decay});
}

void update_adagrad(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices)
    kernels::adagrad(stream, target_of(memory, slice, options, step),
                     {step.learning_rate * slice.learning_rate_scale, options.eps, slice.weight_decay});
}

void update_lion(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices)
    kernels::lion(stream, target_of(memory, slice, options, step),
                  {step.learning_rate * slice.learning_rate_scale, options.beta1, options.beta2, slice.weight_decay});
}

}  // namespace fsdp
