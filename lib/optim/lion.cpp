// Lion: Chen et al. 2023, "Symbolic discovery of optimization algorithms", Algorithm 2, with decoupled decay.
#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

using kernels::single;

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    const double lr = step.learning_rate * slice.learning_rate_scale;
    kernels::update_elements(stream, target_of(memory, slice, options, step),
                             kernels::LionRule{.decay = single(1 - lr * slice.weight_decay),
                                               .learning_rate = single(lr),
                                               .beta1 = single(options.beta1),
                                               .one_minus_beta1 = single(1 - options.beta1),
                                               .beta2 = single(options.beta2),
                                               .one_minus_beta2 = single(1 - options.beta2)});
  }
}

const Rule& rule() {
  static const Rule lion = {.name = "lion", .states = {{"exp_avg"}}, .update = update, .by_element = true};
  return lion;
}

}  // namespace

const Optimizer& lion_optimizer() {
  static const Optimizer lion = {.name = "lion", .beta2 = 0.99, .reads = {.betas = true}, .rules = {&rule()}};
  return lion;
}

}  // namespace fsdp
