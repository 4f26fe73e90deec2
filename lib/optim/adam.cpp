// Adam and AdamW as in torch.optim: AdamW first computes p -= lr * wd * p, while Adam adds wd * p to the gradient. Both then
// compute p -= (lr / bc1) * m / (sqrt(v) / sqrt(bc2) + eps) with bc = 1 - beta^t (Kingma and Ba 2015, Algorithm 1; Loshchilov
// and Hutter 2019, Algorithm 2). With amsgrad, v is replaced by its maximum so far (Reddi et al. 2018, Algorithm 2).
#include <cmath>

#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

using kernels::single;

template <bool amsgrad>
void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  const bool l2 = options.kind->l2_decay;
  for (const OptimizerSlice& slice : memory.slices) {
    const double t = step.number_of(memory.tensors[slice.tensor]);
    const double lr = step.learning_rate * slice.learning_rate_scale;
    kernels::update_elements(
        stream, target_of(memory, slice, options, step),
        kernels::AdamRule<amsgrad>{.decay = single(l2 ? 1 : 1 - lr * slice.weight_decay),
                                   .l2 = single(l2 ? slice.weight_decay : 0),
                                   .beta1 = single(options.beta1),
                                   .one_minus_beta1 = single(1 - options.beta1),
                                   .beta2 = single(options.beta2),
                                   .one_minus_beta2 = single(1 - options.beta2),
                                   .step_size = single(lr / (1 - std::pow(options.beta1, t))),
                                   .inverse_sqrt_correction2 = single(1 / std::sqrt(1 - std::pow(options.beta2, t))),
                                   .eps = single(options.eps)});
  }
}

const Rule& amsgrad_rule() {
  static const Rule rule = {.name = "adam_amsgrad",
                            .states = {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq"}},
                            .update = update<true>,
                            .by_element = true};
  return rule;
}

Optimizer row(std::string_view name, double weight_decay) {
  return {.name = name,
          .weight_decay = weight_decay,
          .reads = {.betas = true, .eps = true, .amsgrad = true},
          .rules = {&adam_rule(), &amsgrad_rule()},
          .rule_of = [](const OptimizerOptions& options, const Parameter&) -> const Rule& {
            return options.amsgrad ? amsgrad_rule() : adam_rule();
          }};
}

}  // namespace

const Rule& adam_rule() {
  static const Rule rule = {
      .name = "adam", .states = {{"exp_avg"}, {"exp_avg_sq"}}, .update = update<false>, .by_element = true};
  return rule;
}

const Optimizer& adamw_optimizer() {
  static const Optimizer adamw = row("adamw", 0.01);
  return adamw;
}

const Optimizer& cpu_adam_optimizer() {
  static const Optimizer cpu_adam = [] {
    Optimizer same = row("cpu_adam", 0);
    same.same_as = "adamw";
    same.about =
        "cpu_adam is the same as adamw, with the name and the default weight decay (0) of fairseq's optimizer for CPUs.";
    return same;
  }();
  return cpu_adam;
}

const Optimizer& adam_optimizer() {
  static const Optimizer adam = [] {
    Optimizer with_l2 = row("adam", 0);
    with_l2.l2_decay = true;
    return with_l2;
  }();
  return adam;
}

}  // namespace fsdp
