// Collectives on memory that the host cannot access, through host memory: the data is copied to a staging buffer, a
// communicator for host memory exchanges it, and the result is copied back. So every backend also works with GPUs, even if
// several ranks share one GPU. The price: two copies, and the host waits for the stream.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace fsdp {

/// `host` and `device` must outlive the result. The staging buffer grows to the size of the largest collective so far.
std::unique_ptr<Collectives> make_staged(Communicator& host, Device& device);

}  // namespace fsdp
