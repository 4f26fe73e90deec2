// The rules of check_plan() about gradients.
#pragma once

#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// Follows each unit's gradient through the plan's update, from the first contribution to the new parameters; throws
/// InternalError as check_plan() does.
void check_gradient_sums(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                         std::size_t micro_batches);

}  // namespace fsdp
