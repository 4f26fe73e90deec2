// Draws one update as text: a row per stream and a box per operation, in the order of the plan. The drawing shows which gather
// overlaps which computation if streams run concurrently. Lengths are not measured times. They follow a rule that the text
// states.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/layout.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// The drawn length of an operation, in forward passes of a block; 0: not drawn. `block_numel` as for draw_timeline(). Pure
/// function.
double drawn_time(const Operation& op, const Layout& layout, std::size_t block_numel);
/// "F0": the letter of the kind, and the number of the block or unit.
std::string drawn_label(const Operation& op, const Layout& layout);

/// `block_numel` is the number of parameters of one block. The transfer of so many parameters is drawn as long as the forward
/// pass of a block. Lines have at most `columns` characters. If there are more than three micro-batches, only the first two and
/// the last one are drawn. Pure function.
std::string draw_timeline(const std::vector<Operation>& operations, const Layout& layout, std::size_t block_numel,
                          std::size_t columns = 120);

}  // namespace fsdp
