// fsdp-bench attention: the attention of one block of a model, forward and backward, alone.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// The report, as text or as one JSON object. Collective over world; every rank has a micro-batch of its own.
std::string bench_attention(const BenchOptions& options, Communicator& world, Device& device, Stream& stream);

}  // namespace fsdp
