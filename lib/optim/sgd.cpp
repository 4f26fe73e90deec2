// SGD as in torch.optim.SGD, without dampening, with L2 decay.
#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

using kernels::single;

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  const float momentum = single(options.momentum);
  for (const OptimizerSlice& slice : memory.slices) {
    const kernels::UpdateTarget target = target_of(memory, slice, options, step);
    const float lr = single(step.learning_rate * slice.learning_rate_scale), l2 = single(slice.weight_decay);
    if (options.momentum == 0)
      kernels::update_elements(stream, target, kernels::SgdRule{.decay = 1, .l2 = l2, .learning_rate = lr});
    else
      kernels::update_elements(stream, target,
                               kernels::MomentumRule{.l2 = l2,
                                                     .learning_rate = lr,
                                                     .momentum = momentum,
                                                     .of_gradient = options.nesterov ? 1.0f : 0.0f,
                                                     .of_momentum = options.nesterov ? momentum : 1.0f});
  }
}

const Rule& plain() {
  static const Rule rule = {.name = "sgd", .update = update};
  return rule;
}

const Rule& with_momentum() {
  static const Rule rule = {.name = "sgd_momentum", .states = {{"momentum_buffer"}}, .update = update, .by_element = true};
  return rule;
}

}  // namespace

const Optimizer& sgd_optimizer() {
  static const Optimizer sgd = {.name = "sgd",
                                .l2_decay = true,
                                .reads = {.momentum = true, .nesterov = true},
                                .rules = {&plain(), &with_momentum()},
                                .rule_of = [](const OptimizerOptions& options, const Parameter&) -> const Rule& {
                                  return options.momentum == 0 ? plain() : with_momentum();
                                }};
  return sgd;
}

}  // namespace fsdp
