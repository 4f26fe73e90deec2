// LAMB: You et al. 2020, "Large batch optimization for deep learning", Algorithm 2, with phi the identity. LAMB needs the norms
// of the weights and of the update directions over whole tensors, which takes one round of sums.
#include <cmath>

#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

kernels::LambStep step_of(const UnitMemory& memory, const OptimizerSlice& slice, const OptimizerOptions& options,
                          const OptimizerStep& step) {
  const double t = step.number_of(memory.tensors[slice.tensor]);
  return {.learning_rate = step.learning_rate * slice.learning_rate_scale,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = slice.weight_decay,
          .bias_correction1 = 1 - std::pow(options.beta1, t),
          .bias_correction2 = 1 - std::pow(options.beta2, t)};
}

std::size_t words(const Shape&, int) { return 2 * kernels::ExactSum::words; }

void count(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step, int) {
  for (const OptimizerSlice& slice : memory.slices)
    kernels::lamb_statistics(stream, target_of(memory, slice, options, step), step_of(memory, slice, options, step),
                             sum_of(memory, slice, 0, 0), sum_of(memory, slice, 0, 1));
}

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices)
    kernels::lamb(stream, target_of(memory, slice, options, step), step_of(memory, slice, options, step),
                  sum_of(memory, slice, 0, 0), sum_of(memory, slice, 0, 1));
}

const Rule& rule() {
  static const Rule lamb = {.name = "lamb",
                            .states = {{"exp_avg"}, {"exp_avg_sq"}},
                            .update = update,
                            .passes = {4, 3},
                            .statistics = {1, words, count}};
  return lamb;
}

}  // namespace

const Optimizer& lamb_optimizer() {
  static const Optimizer lamb = {
      .name = "lamb", .eps = 1e-6, .weight_decay = 0.01, .reads = {.betas = true, .eps = true}, .rules = {&rule()}};
  return lamb;
}

}  // namespace fsdp
