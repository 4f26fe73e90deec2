// Waits for messages without taking cores from ranks that compute.
#pragma once

#include <mpi.h>

#include <atomic>
#include <span>

namespace fsdp {

/// Returns true when all requests are complete. Returns false after `timeout_s` seconds, measured by a WaitTimer (0: no
/// limit), or after `given_up` is set. Polls continuously at first, since most messages arrive soon, then yields the core
/// between two polls. Sleeping instead was no faster (two and four ranks on two idle or busy cores, 3 MB collectives between
/// computations), cost 0.1 ms per small collective, and delays messages, which MPI moves only during its calls.
bool wait_all(std::span<MPI_Request> requests, double timeout_s, const std::atomic<bool>& given_up);

}  // namespace fsdp
