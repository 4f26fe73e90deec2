// State of users' layers, such as running means. The "gradient" is the sum over the micro-batches k of K and over the ranks of
// m (1 - m)^(K-1-k) next / ranks, which Chain::move_state() adds up. So one step per update gives what one step per
// micro-batch would give: value = (1 - m) value + m next.
#include <cmath>

#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    kernels::UpdateTarget target = target_of(memory, slice, options, step);
    target.scales = false;
    const double kept = std::pow(1 - slice.momentum, step.micro_batches);
    // Computes value + (sum - (1 - kept) value) rather than kept value + sum: with a small momentum, rounding then does not
    // move the limit. If kept is 0, the value is the sum.
    kernels::update_elements(
        stream, target,
        kernels::SgdRule{
            .decay = kept > 0 ? 1.0f : 0.0f, .l2 = kept > 0 ? kernels::single(kept - 1) : 0.0f, .learning_rate = -1});
  }
}

}  // namespace

const Rule& running_mean_rule() {
  static const Rule rule = {.name = "running_mean", .update = update, .is_of_state = true};
  return rule;
}

}  // namespace fsdp
