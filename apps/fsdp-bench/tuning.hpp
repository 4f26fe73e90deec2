// fsdp-bench tuning: finds the fastest combination of batch size, strategy, and recomputation or none. The batch size doubles
// until a rank's memory is too small.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text with a table for plotting programs, or as one JSON object. `node` has the ranks of this node.
/// Collective over world.
std::string bench_tuning(const BenchOptions& options, Communicator& world, Communicator& node, Device& device);

}  // namespace fsdp
