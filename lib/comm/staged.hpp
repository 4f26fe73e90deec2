// Collectives on memory that the host cannot access, through staging and a group for host memory: the host waits for the
// stream, the ranks exchange the copied data, and the result is copied back. So groups by MPI, by nodes and by shared memory
// also work with GPUs, even if several ranks share one GPU. The price is two copies and a host that waits.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace fsdp {

/// `host` and `device` must outlive the result. Staging grows to the size of the largest collective so far.
std::unique_ptr<Collectives> make_staged(Communicator& host, Device& device);

}  // namespace fsdp
