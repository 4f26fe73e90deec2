// Checks that a checkpoint can continue in this run. They only read the checkpoint's header.
#pragma once

#include <string>

#include "checkpoint/checkpoint.hpp"
#include "engine/options.hpp"

namespace fsdp {

/// Throws UserError if `checkpoint` has not the states of this optimizer. `remedy`: how to continue without them.
void require_same_optimizer(const OptimizerOptions& optimizer, const CheckpointReader& checkpoint, const std::string& remedy);
/// Throws UserError if an average of the weights is wanted and the checkpoint has none to continue with. Returns a warning if
/// the checkpoint's average is not continued; else an empty text.
std::string require_average(const UpdateOptions& options, const CheckpointReader& checkpoint);
/// Returns a warning that names the trained parameters of `layout` whose optimizer states `checkpoint` does not have; empty if
/// there are none.
std::string describe_new_states(const Layout& layout, const std::vector<Parameter>& parameters,
                                const CheckpointReader& checkpoint);

}  // namespace fsdp
