// Derives from the ordered operations of a plan: loads and unloads, waits, buffer lifetimes, and the places of buffers in
// memory. Private to the plan builder.
#pragma once

#include "plan/plan.hpp"

namespace fsdp {

/// An offloaded buffer is kept in another space, such as the host's memory. The builder marks offloaded buffers
/// (PlanBuffer::slot) and writes its lists as if all buffers were on the device. add_loads() changes all lists of the plan: it
/// replaces operands in offloaded buffers by places in their slots, and inserts loads and unloads. A buffer stays loaded from
/// the first operation that uses it to the last one before another owner takes its slot. It is loaded as soon as the slot is
/// free and all contents that are needed before it are loaded, and unloaded after the last operation of its stay that changes
/// it. When a list begins or ends, no buffer is loaded.
void add_loads(Plan& plan);
/// Fills `waits` of each operation.
void derive_waits(std::vector<Operation>& list, std::size_t buffers);
/// Fills `acquires` and `frees` of each operation.
void derive_lifetimes(std::vector<Operation>& list, const std::vector<PlanBuffer>& buffers);
/// Fills the buffers' offsets and the sizes of the arenas.
void place_buffers(Plan& plan);

}  // namespace fsdp
