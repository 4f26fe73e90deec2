// Generating text: how fast a model reads prompts and writes answers, with its key-value cache, without one, and beside
// transformers' generate(), taking turns in one run.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// The report, as text or as one JSON object. Collective over world; every rank has a batch of its own.
std::string bench_generate(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
