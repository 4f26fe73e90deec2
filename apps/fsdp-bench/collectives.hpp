// fsdp-bench collectives: on CPUs, compares this project's collectives with the MPI library's own, alternating in one run; on
// GPUs, measures only this project's collectives.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text or as one JSON object. `comm` has all processes of the job. Collective over comm.
std::string bench_collectives(std::size_t largest_bytes, bool json, Communicator& comm, Device& device, Stream& stream);

/// As bench_collectives(), but for collectives on GPU memory. options.comm selects NCCL or transfers through host memory.
std::string bench_collectives_of_gpus(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
