// Checks that this run can resume a checkpoint. They read only its header.
#pragma once

#include <string>

#include "checkpoint/checkpoint.hpp"
#include "engine/options.hpp"

namespace fsdp {

/// Throws UserError if `checkpoint` does not have the states of this optimizer. `remedy`: how to continue without them.
void require_same_optimizer(const OptimizerOptions& optimizer, const CheckpointReader& checkpoint, const std::string& remedy);
/// Throws UserError if this run has to continue an average of the weights, but the checkpoint has none. Returns a warning if
/// the checkpoint has an average that this run does not continue; else an empty text.
std::string require_average(const UpdateOptions& options, const CheckpointReader& checkpoint);
/// Returns a warning that names the trained parameters of `layout` whose optimizer states `checkpoint` does not have; empty if
/// there are none.
std::string describe_new_states(const Layout& layout, const std::vector<Parameter>& parameters,
                                const CheckpointReader& checkpoint);

}  // namespace fsdp
