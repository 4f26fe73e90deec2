// The training loop.
#pragma once

#include "comm/communicator.hpp"
#include "train/options.hpp"

namespace fsdp {

/// Trains as `options` say (resolved, complete) and returns the exit code: 0 done, 75 stopped on request with everything saved.
/// Collective over world. Throws CollectiveError for what stops all ranks, anything else for what befell this one.
int train(const TrainOptions& options, Communicator& world);

}  // namespace fsdp
