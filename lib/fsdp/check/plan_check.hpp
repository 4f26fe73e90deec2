// Proves a plan sound before it runs, by rules of its own: nothing here is shared with the builder.
#pragma once

#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// Checks the lists of operations one after another; throws InternalError naming the operation and the rule that it breaks.
/// - Operands: what an operation moves, sums or updates lies where the model's tables, the norm and saves look for it, in full.
/// - Order: every read has a write that happens before it (by stream order and waits); every write happens after the earlier
///   write and all its readers, so that a slot is reused after its last reader only; transient buffers are used by one stream.
/// - Gathers: every stage finds its parameters gathered, no gathered unit is overwritten, every gathered unit is released.
/// - Gradients: every micro-batch's contribution of every stage to every trained unit counts exactly once, each unit is
///   reduced over all ranks that have a part in it before its squares are taken, the norm has all squares, and every trained
///   unit is updated once, after it.
/// - Sums in a tree: micro-batches join in the canonical order, each after it is summed over all ranks.
/// - Optimizers that need sums over whole tensors: each round has every unit's once, is summed over the ranks after them, and
///   is there before the next round, and before the updates.
/// - Optimizers that work on whole matrices: each unit's directions are made, gathered, worked on and given back once, in this
///   order, summed over all ranks that may own one, and there before the update.
/// - What is kept in 16 bits: every sum is kept before its memory is used again, what is kept is what the norm has seen, and
///   the fp32 numbers that an operation finds are of its unit.
/// - What is kept on the host: only loads and unloads touch it. An operation finds its unit's data loaded. What it changes is
///   unloaded before another unit takes the slot, and before the list ends.
/// - Decoding: each block reads and writes its own cache, which nothing else touches.
/// - Memory: buffers that are alive together do not overlap, lie inside the arena, and add up to the planned peak.
///
/// Takes milliseconds for a hundred layers.
void check_plan(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                std::size_t micro_batches);

}  // namespace fsdp
