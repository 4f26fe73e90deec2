// The optimizer alone: each kind on the parameters of a model, against the machine's copy bandwidth, taking turns in
// one run.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// The report, as text or as one JSON object. Collective over world; every rank works on a whole model's parameters.
std::string bench_optimizer(const BenchOptions& options, Communicator& world, Device& device, Stream& stream);

}  // namespace fsdp
