// fsdp-bench collectives: on CPUs, compares this project's collectives with the MPI library's own, alternating in one run; on
// GPUs, measures only this project's collectives.
#pragma once

#include <string>

#include "fsdp-bench/bench.hpp"

namespace fsdp {

/// Returns the report, as text or as one JSON object. `world` has all processes of the job; on GPUs, options.comm selects NCCL
/// or transfers through host memory. Collective over world.
std::string bench_collectives(const BenchOptions& options, Communicator& world, Device& device);

}  // namespace fsdp
