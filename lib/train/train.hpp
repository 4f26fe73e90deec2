// The training loop.
#pragma once

#include "comm/communicator.hpp"
#include "options/options.hpp"

namespace fsdp {

/// Trains with `options`, which must be resolved and complete, and returns the exit code: 0 done, 75 stopped on request with
/// everything saved, 1 stopped on request with --no-save. Collective over world. Throws CollectiveError if an error stops all
/// ranks, and another exception if the error concerns only this rank.
int train(const TrainOptions& options, Communicator& world);

}  // namespace fsdp
