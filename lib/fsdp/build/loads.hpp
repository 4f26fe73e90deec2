// Some buffers are kept on the host. Before operations use one, it is loaded into a slot on the device; after they have changed
// it, it is unloaded. Private to the builder of plans.
//
// The builder says which buffers these are (PlanBuffer::slot), and writes its lists as if all of them were on the device. Then
// this walks over each list: a buffer stays loaded from the first operation that uses it to the last one before another unit
// takes its slot.
#pragma once

#include "fsdp/plan.hpp"

namespace fsdp {

/// Puts loads and unloads into all lists of the plan, and makes operations read and write in the slots. Every list begins and
/// ends with nothing loaded.
void add_loads(Plan& plan);

}  // namespace fsdp
