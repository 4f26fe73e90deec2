// Proves that a plan is sound before it runs. It shares no code with the builder.
#pragma once

#include "plan/layout.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// Checks the lists of operations one after another. Throws InternalError that names the operation and the rule that it breaks.
/// - Operands: the data that an operation moves, sums or updates is complete, and is in the place that stages, the norm and
/// saves use.
/// - Order: every read has a write that happens before it (by stream order and waits). Every write happens after the previous
/// write and all its readers, so that a slot is reused only after its last reader. A transient buffer is used by only one
/// stream.
/// - Gathers: every stage finds its parameters gathered, no gathered unit is overwritten, and every gathered unit is released.
/// - Gradients: for every trained unit, the gradient that each stage computes in each micro-batch is added exactly once. Each
/// gradient is reduced over all ranks that contribute to it before its squares are added, the norm includes all squares, and
/// every trained unit is updated once, after the norm.
/// - Invariant plans: partial sums over micro-batches are added in the canonical order, and only after they are summed over all
/// ranks.
/// - Optimizers that need sums over whole tensors: each round includes every unit once, and is then summed over ranks, before
/// the next round and before the updates.
/// - Optimizers that work on whole matrices: each unit's directions are computed, gathered, worked on and returned once, in
/// this order, summed over all ranks that may own a matrix, and complete before the update.
/// - State kept in 16 bits: every fp32 value is rounded to the kept state before its memory is reused, the norm is that of the
/// kept gradients, and an operation finds the fp32 values of its own unit.
/// - Offloaded state: only loads and unloads access it. An operation finds its unit's data loaded. Its changes are unloaded
/// before another unit takes the slot, and before the list ends.
/// - Decoding: each block reads and writes only its own cache, which nothing else accesses.
/// - Memory: buffers with overlapping lifetimes do not overlap, are inside the arena, and add up to the planned peak.
///
/// The check takes milliseconds for a hundred layers. `evaluated` is as for build_plan().
void check_plan(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                std::size_t micro_batches, const ModelSizes* evaluated = nullptr);

}  // namespace fsdp
