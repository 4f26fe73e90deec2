// What is in memory that several things take in turn: what an operation finds there is its own.
#pragma once

#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// Follows a list whose operands have been checked, and remembers for each range of bytes what was left there: of which unit,
/// stage and micro-batch, and whether what is offloaded has an older copy. Throws InternalError if
/// - an operation finds something else than what its operand needs,
/// - gathered parameters or matrices are overwritten before they are released, or are there at the end,
/// - an operation finds parameters that other ranks have changed, or a list leaves such,
/// - the loss of an evaluation or the logits of a step of decoding are not given,
/// - an operation touches what is offloaded, or a change to it is lost. What a list leaves of unreduced gradients may be lost.
void check_contents(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                    std::size_t micro_batches, const std::vector<Operation>& list);

}  // namespace fsdp
