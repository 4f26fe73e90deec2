// fsdp-bench attention: measures the attention of one block, forward and backward.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text or as one JSON object. Collective over world; every rank computes on its own micro-batch.
std::string bench_attention(const BenchOptions& options, Communicator& world, Device& device, Stream& stream);

}  // namespace fsdp
