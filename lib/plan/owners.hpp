// Some optimizers (Muon) work on whole matrices. This file assigns that work to ranks. It is a pure function of the layout, so
// that no communication is needed.
#pragma once

#include <vector>

#include "plan/layout.hpp"

namespace fsdp {

/// Returns for each unit and each of its parameters the rank (of `ranks` ranks) that works on the parameter. The list of a unit
/// whose rule needs no whole matrices is empty. Groups of `at_once` consecutive units are worked on together. Within a group,
/// matrices are assigned in order of decreasing cost, each to the rank with the least work in this group and, among equals,
/// with the least work in all groups so far.
std::vector<std::vector<int>> matrix_owners(const Layout& layout, int ranks, std::size_t at_once);

}  // namespace fsdp
