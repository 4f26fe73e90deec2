// Internal: see api/optimizer.hpp.
#pragma once

namespace fsdp {

struct Optimizer;
/// Returns true for optimizers of the user's own, which run on CPUs only.
bool is_own_optimizer(const Optimizer& optimizer);

}  // namespace fsdp
