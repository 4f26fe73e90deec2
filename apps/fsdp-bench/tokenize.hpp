#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// How fast texts become tokens, by one thread and by several, beside Hugging Face's tokenizers in turn where a Python has
/// them. One rank.
std::string bench_tokenize(const BenchOptions& options, const Communicator& world);

}  // namespace fsdp
