// fsdp-bench tuning: finds the fastest batch size, strategy and use of recomputation. Batches double until they exceed the
// memory of a rank.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text with a table for plotting programs, or as one JSON object. Collective over world; `node` has the
/// ranks of this node.
std::string bench_tuning(const BenchOptions& options, Communicator& world, Communicator& node, Device& device);

}  // namespace fsdp
