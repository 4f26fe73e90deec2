// An offloaded buffer is kept in another space, such as the host's memory. It is loaded into a slot on the device before
// operations use it, and unloaded after they have changed it. Private to the plan builder.
//
// The builder marks offloaded buffers (PlanBuffer::slot) and writes its lists as if all buffers were on the device. add_loads()
// then changes each list: a buffer stays loaded from the first operation that uses it to the last one before another owner
// takes its slot.
#pragma once

#include "plan/plan.hpp"

namespace fsdp {

/// Inserts loads and unloads into all lists of the plan, and replaces operands in offloaded buffers by places in their slots.
/// When a list begins or ends, no buffer is loaded.
void add_loads(Plan& plan);

}  // namespace fsdp
