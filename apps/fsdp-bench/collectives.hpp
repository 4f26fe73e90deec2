// fsdp-bench collectives: this project's collectives and the MPI library's own, taking turns in one run.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace fsdp {

/// The report, as text or as one JSON object. `comm` is all processes of the job. Collective over comm.
std::string bench_collectives(std::size_t largest_bytes, bool json, Communicator& comm, Device& device, Stream& stream);

}  // namespace fsdp
