// fsdp-bench checkpoint: saves, reads and consolidation of a model's checkpoints against plain files of as many bytes, and what
// a save costs training, taking turns in one run.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// The report, as text or as one JSON object. Collective over world.
std::string bench_checkpoint(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
