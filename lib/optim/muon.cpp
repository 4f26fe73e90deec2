#include "optim/muon.hpp"

#include <algorithm>
#include <cmath>

#include "optim/elementwise.hpp"

namespace fsdp {

void muon_direction(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    kernels::UpdateTarget target = target_of(memory, slice, options, step);
    target.parameter = memory.directions + slice.offset;
    kernels::muon_momentum(stream, target, options.momentum);
  }
}

void update_muon(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step) {
  for (const OptimizerSlice& slice : memory.slices) {
    const UnitTensor& tensor = memory.tensors[slice.tensor];
    const double lr = step.learning_rate * slice.learning_rate_scale;
    // An orthogonal matrix has a root mean square of 1 / sqrt(columns) where it is tall: PyTorch's adjust_lr_fn "original".
    const double adjusted =
        lr * std::sqrt(std::max(1.0, static_cast<double>(tensor.rows) / static_cast<double>(tensor.columns)));
    kernels::UpdateTarget target = target_of(memory, slice, options, step);
    target.gradient = memory.directions + slice.offset;
    target.gradient_scale = 1;
    kernels::descend(stream, target, 1 - lr * slice.weight_decay, adjusted);
  }
}

}  // namespace fsdp
