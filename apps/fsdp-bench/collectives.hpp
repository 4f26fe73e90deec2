// fsdp-bench collectives: compares this project's collectives with the MPI library's own, alternating in one run; for GPUs
// measures only ours.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text or as one JSON object. `comm` has all processes of the job. Collective over comm.
std::string bench_collectives(std::size_t largest_bytes, bool json, Communicator& comm, Device& device, Stream& stream);

/// The same for collectives on GPU memory, by NCCL or through the host, as chosen by options.comm.
std::string bench_collectives_of_gpus(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
