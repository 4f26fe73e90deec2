// Adagrad as in torch.optim.Adagrad (Duchi et al. 2011, figure 1, the diagonal form), with L2 decay.
#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

using kernels::single;

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices)
    kernels::update_elements(stream, target_of(memory, slice, options, step),
                             kernels::AdagradRule{.l2 = single(slice.weight_decay),
                                                  .learning_rate = single(step.learning_rate * slice.learning_rate_scale),
                                                  .eps = single(options.eps)});
}

const Rule& rule() {
  static const Rule adagrad = {.name = "adagrad", .states = {{"sum"}}, .update = update, .by_element = true};
  return adagrad;
}

}  // namespace

const Optimizer& adagrad_optimizer() {
  static const Optimizer adagrad = {
      .name = "adagrad", .eps = 1e-10, .l2_decay = true, .reads = {.eps = true}, .rules = {&rule()}};
  return adagrad;
}

}  // namespace fsdp
