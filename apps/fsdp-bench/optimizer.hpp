// fsdp-bench optimizer: measures each optimizer on the parameters of a model, and compares the optimizer's memory bandwidth
// with that of a plain copy. Both are measured in turn, in the same run.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text or as one JSON object. Collective over world; every rank updates the parameters of a whole
/// model.
std::string bench_optimizer(const BenchOptions& options, Communicator& world, Device& device, Stream& stream);

}  // namespace fsdp
