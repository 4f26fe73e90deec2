// One update drawn as text: a row per stream, a box per operation, in the order of the plan. Shows which gather overlaps which
// computation where streams run at the same time. Nothing here is measured: times follow from a rule that the text states.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp/layout.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// How long an operation takes by the rule of the drawing, in forward passes of a block; 0: it is not drawn. `block_numel` as
/// below. Pure function.
double drawn_time(const Operation& op, const Layout& layout, std::size_t block_numel);
/// "F0": the letter of the kind, and which block or unit.
std::string drawn_label(const Operation& op, const Layout& layout);

/// `block_numel`: parameters of one block, whose transfer is drawn as long as its forward pass. Lines are at most `columns`
/// wide. Of more than three micro-batches the first two and the last one are drawn. Pure function.
std::string draw_timeline(const std::vector<Operation>& operations, const Layout& layout, std::size_t block_numel,
                          std::size_t columns = 120);

}  // namespace fsdp
