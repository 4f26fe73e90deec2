// Who does the work on whole matrices that an optimizer needs once (Muon). A pure function of the layout, so that nobody asks.
#pragma once

#include <vector>

#include "fsdp/layout.hpp"

namespace fsdp {

/// [unit][position in it]: the rank of `ranks` that works on this parameter; nothing for units whose rule needs no whole
/// matrices. Each matrix goes to the rank that has least to do, dearest first, within groups of `at_once` consecutive such
/// units, since these are worked on together; then to the one that has done least before.
std::vector<std::vector<int>> matrix_owners(const Layout& layout, int ranks, std::size_t at_once);

}  // namespace fsdp
