// fsdp-bench tuning: which batch size, with or without recomputation, under which strategy? Batches double until the memory
// of a rank does not hold them.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// The report, as text whose table a plotting program reads, or as one JSON object. Collective over world, of which
/// `node` is the part on this node.
std::string bench_tuning(const BenchOptions& options, Communicator& world, Communicator& node, Device& device);

}  // namespace fsdp
