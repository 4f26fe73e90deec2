// fsdp-bench checkpoint: compares saving, reading and consolidating a model's checkpoints with plain files of the same size,
// and measures how much time a save costs training. All measurements alternate in one run.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text or as one JSON object. Collective over world.
std::string bench_checkpoint(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
