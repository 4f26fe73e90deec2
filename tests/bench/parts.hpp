// bench-parts: measurements of parts of the library for its developers, with the common code of fsdp-bench.
#pragma once

#include <filesystem>
#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

struct PartsOptions : BenchOptions {
  std::string optimizer;  // the only optimizer to measure; empty means all
  std::filesystem::path save_dir = ".";
};

// Each returns the report, as text or as one JSON object. Collective over world.

/// Measures the attention of one block, forward and backward; every rank computes on its own micro-batch.
std::string bench_attention(const PartsOptions& options, Communicator& world, Device& device, Stream& stream);
/// Measures the kernels that work row by row, such as norms, and compares the memory bandwidth of each with that of a copy.
/// Every rank computes on its own micro-batch.
std::string bench_rows(const PartsOptions& options, Communicator& world, Device& device, Stream& stream);
/// Measures each optimizer on the parameters of a whole model, on every rank, and compares its memory bandwidth with that of a
/// plain copy. Both are measured in turn, in the same run.
std::string bench_optimizer(const PartsOptions& options, Communicator& world, Device& device, Stream& stream);
/// Compares saving, reading and consolidating a model's checkpoints with plain files of the same size, and measures how much
/// time a save costs training. All measurements alternate in one run.
std::string bench_checkpoint(const PartsOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
