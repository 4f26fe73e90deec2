// Derives from the ordered operations of a plan: waits, buffer lifetimes, and the places of buffers in memory. Private to the
// plan builder.
#pragma once

#include "plan/plan.hpp"

namespace fsdp {

/// Fills `waits` of each operation.
void derive_waits(std::vector<Operation>& list, std::size_t buffers);
/// Fills `acquires` and `frees` of each operation.
void derive_lifetimes(std::vector<Operation>& list, const std::vector<PlanBuffer>& buffers);
/// Fills the buffers' offsets and the sizes of the arenas.
void place_buffers(Plan& plan);

}  // namespace fsdp
