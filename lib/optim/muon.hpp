// Muon: directions that are made of whole matrices. Private to lib/optim.
#pragma once

#include "optim/optimizer.hpp"

namespace fsdp {

void muon_direction(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);
void update_muon(Stream& stream, const UnitMemory& memory, const OptimizerOptions& options, const OptimizerStep& step);

}  // namespace fsdp
