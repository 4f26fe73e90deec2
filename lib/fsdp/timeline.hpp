// One update drawn as text: a row per stream, a box per operation, in the order of the plan. Shows which gather overlaps which
// computation where streams run at the same time. Nothing here is measured: times follow from a rule that the text states.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp/layout.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// `block_numel`: parameters of one block, whose transfer is drawn as long as its forward pass. Lines are at most `columns`
/// wide. Of more than three micro-batches the first two and the last one are drawn. Pure function.
std::string draw_timeline(const std::vector<Operation>& operations, const Layout& layout, std::size_t block_numel,
                          std::size_t columns = 120);

}  // namespace fsdp
