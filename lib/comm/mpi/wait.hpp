// Waits for messages without taking cores from ranks that compute.
#pragma once

#include <mpi.h>

#include <atomic>
#include <span>

namespace fsdp {

/// Returns true when all requests are complete, or false after `timeout_s` (0: no limit) of a WaitTimer or after `given_up` is
/// set. Polls continuously at first, since most messages arrive soon, then yields the core between two polls. Sleeping instead
/// gained nothing (two and four ranks on two cores, idle and busy, 3 MB collectives between computations), cost 0.1 ms per
/// small collective, and stops messages in flight.
bool wait_all(std::span<MPI_Request> requests, double timeout_s, const std::atomic<bool>& given_up);

}  // namespace fsdp
