// What follows from the operations of a plan, once they are in their order: who waits for whom, how long buffers live, and
// where they lie. Private to the builder of plans.
#pragma once

#include "fsdp/plan.hpp"

namespace fsdp {

/// Fills `waits` of each operation.
void derive_waits(std::vector<Operation>& list, std::size_t buffers);
/// Fills `acquires` and `frees` of each operation.
void derive_lifetimes(std::vector<Operation>& list, const std::vector<PlanBuffer>& buffers);
/// Fills the buffers' offsets and the sizes of the arenas.
void place_buffers(Plan& plan);

}  // namespace fsdp
