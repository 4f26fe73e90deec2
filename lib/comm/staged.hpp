// Collectives on memory that the host does not reach, by a group that moves memory of the host: through staging. The host waits
// for the stream, the ranks exchange what was copied, and the result is copied back. So groups by MPI, by nodes or by shared
// memory work with GPUs, also where several ranks share one, at the price of two copies and of a host that waits.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace fsdp {

/// `host` and `device` outlive it. Staging grows to what the largest collective needs, when that comes for the first time.
std::unique_ptr<Collectives> make_staged(Communicator& host, Device& device);

}  // namespace fsdp
