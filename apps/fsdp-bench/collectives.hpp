// fsdp-bench collectives: this project's collectives and the MPI library's own, taking turns in one run; of GPUs ours alone.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// The report, as text or as one JSON object. `comm` is all processes of the job. Collective over comm.
std::string bench_collectives(std::size_t largest_bytes, bool json, Communicator& comm, Device& device, Stream& stream);

/// The same of collectives on the memory of GPUs, by NCCL or through the host as options.comm says.
std::string bench_collectives_of_gpus(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
