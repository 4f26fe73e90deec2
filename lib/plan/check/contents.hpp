// Checks memory that several units, stages or micro-batches share one after another: an operation must find the content of its
// own unit, stage and micro-batch there.
#pragma once

#include "plan/layout.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// Simulates a list whose operands have been checked. For each range of bytes it tracks the content (unit, stage and
/// micro-batch), and whether the host copy of offloaded state is out of date. Throws InternalError if
/// - an operation finds other content than its operand needs,
/// - gathered parameters or matrices are overwritten before their release, or are still there at the end,
/// - parameters that other ranks have changed are not gathered again before an operation reads them or the list ends,
/// - an evaluation does not produce its loss, or a decoding step does not produce its logits,
/// - an operation other than loads and unloads accesses offloaded state, or a change to offloaded state is lost. Only unreduced
/// gradients may be lost at the end of a list,
/// - offloaded activations are loaded before they are unloaded.
void check_contents(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                    std::size_t micro_batches, const std::vector<Operation>& list);

}  // namespace fsdp
