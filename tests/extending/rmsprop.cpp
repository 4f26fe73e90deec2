// RMSprop as torch.optim.RMSprop (Tieleman and Hinton 2012, lecture 6e): the gradient over the root of a moving average of its
// squares, with or without momentum. `beta2` is what PyTorch calls alpha.
#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace {

using namespace fsdp;
using kernels::single;

/// The arithmetic of one element: the new parameter from the old one, the gradient and the states, which move on.
struct RmspropElement {
  static constexpr int states = 1;
  float l2, learning_rate, beta2, one_minus_beta2, eps;
  FSDP_INLINE float operator()(float p, float g, float* s) const {
    g += l2 * p;
    s[0] = beta2 * s[0] + one_minus_beta2 * g * g;
    return p - learning_rate * g / (kernels::square_root(s[0]) + eps);
  }
};

struct RmspropMomentumElement {
  static constexpr int states = 2;
  RmspropElement plain;
  float momentum;
  FSDP_INLINE float operator()(float p, float g, float* s) const {
    g += plain.l2 * p;
    s[0] = plain.beta2 * s[0] + plain.one_minus_beta2 * g * g;
    s[1] = momentum * s[1] + g / (kernels::square_root(s[0]) + plain.eps);
    return p - plain.learning_rate * s[1];
  }
};

/// A rank's part of a unit. Numbers are in double until they belong to one element.
void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    const RmspropElement plain = {.l2 = single(slice.weight_decay),
                                  .learning_rate = single(step.learning_rate * slice.learning_rate_scale),
                                  .beta2 = single(options.beta2),
                                  .one_minus_beta2 = single(1 - options.beta2),
                                  .eps = single(options.eps)};
    const kernels::UpdateTarget target = target_of(memory, slice, options, step);
    if (options.momentum == 0)
      kernels::update_elements(stream, target, plain);
    else
      kernels::update_elements(stream, target, RmspropMomentumElement{plain, single(options.momentum)});
  }
}

const Rule& plain_rule() {
  static const Rule rule = {.name = "rmsprop", .states = {{"square_avg"}}, .update = update};
  return rule;
}

const Rule& momentum_rule() {
  static const Rule rule = {.name = "rmsprop_momentum", .states = {{"square_avg"}, {"momentum_buffer"}}, .update = update};
  return rule;
}

}  // namespace

const fsdp::Optimizer& rmsprop_optimizer() {
  static const Optimizer rmsprop = {.name = "rmsprop",
                                    .about = "rmsprop reads the second of the betas, which PyTorch calls alpha.",
                                    .beta2 = 0.99,
                                    .l2_decay = true,
                                    .reads = {.betas = true, .eps = true, .momentum = true},
                                    .rules = {&plain_rule(), &momentum_rule()},
                                    .rule_of = [](const OptimizerOptions& options, const Parameter&) -> const Rule& {
                                      return options.momentum == 0 ? plain_rule() : momentum_rule();
                                    }};
  return rmsprop;
}
