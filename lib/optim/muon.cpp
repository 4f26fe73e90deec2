// Muon as in torch.optim.Muon (Jordan et al. 2024): for the matrices inside blocks, the update directions are computed from
// whole matrices. AdamW updates the other parameters.
#include <algorithm>
#include <cmath>

#include "kernels/element_update.hpp"
#include "optim/optimizer.hpp"

namespace fsdp {

namespace {

using kernels::single;

void direct(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    kernels::UpdateTarget target = target_of(memory, slice, options, step);
    target.parameter = memory.directions + slice.offset;
    kernels::update_elements(
        stream, target,
        kernels::MuonMomentumRule{.momentum = single(options.momentum), .one_minus_momentum = single(1 - options.momentum)});
  }
}

void update(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    const UnitTensor& tensor = memory.tensors[slice.tensor];
    const double lr = step.learning_rate * slice.learning_rate_scale;
    // The factor of PyTorch's adjust_lr_fn "original". With it, the root mean square of a tall orthogonal matrix is 1 /
    // sqrt(columns).
    const double adjusted =
        lr * std::sqrt(std::max(1.0, static_cast<double>(tensor.rows) / static_cast<double>(tensor.columns)));
    kernels::UpdateTarget target = target_of(memory, slice, options, step);
    target.gradient = memory.directions + slice.offset;
    target.scales = false;  // the directions were computed from the scaled gradient
    kernels::update_elements(
        stream, target,
        kernels::SgdRule{.decay = single(1 - lr * slice.weight_decay), .l2 = 0, .learning_rate = single(adjusted)});
  }
}

const Rule& of_matrices() {
  static const Rule rule = {
      .name = "muon",
      .states = {{"momentum_buffer"}},
      .update = update,
      .passes = {5, 2},
      .whole = {direct, kernels::newton_schulz, kernels::newton_schulz_scratch, kernels::newton_schulz_flops}};
  return rule;
}

}  // namespace

const Optimizer& muon_optimizer() {
  static const Optimizer muon = {.name = "muon",
                                 .about = "muon updates the matrices of the blocks, and adamw updates the other parameters.",
                                 .weight_decay = 0.1,
                                 .momentum = 0.95,
                                 .reads = {.betas = true, .eps = true, .momentum = true, .nesterov = true},
                                 .rules = {&of_matrices(), &adam_rule()},
                                 .rule_of = [](const OptimizerOptions&, const Parameter& parameter) -> const Rule& {
                                   const bool in_block = parameter.shape.size() == 2 && parameter.block >= 0;
                                   return in_block ? of_matrices() : adam_rule();
                                 }};
  return muon;
}

}  // namespace fsdp
