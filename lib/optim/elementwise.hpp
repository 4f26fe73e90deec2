// Updates that need nothing but the element: private to lib/optim.
#pragma once

#include "optim/optimizer.hpp"

namespace fsdp {

void update_adam(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);
void update_amsgrad(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);
void update_sgd(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);
void update_adagrad(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);
void update_lion(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);

/// The kernels' view of a slice.
kernels::UpdateTarget target_of(const UnitMemory& memory, const OptimizerSlice& slice, const OptimizerOptions& options,
                                const OptimizerStep& step);

}  // namespace fsdp
