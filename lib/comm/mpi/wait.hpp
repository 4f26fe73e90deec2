// Waiting for messages without taking the cores from ranks that compute.
#pragma once

#include <mpi.h>

#include <atomic>
#include <span>

namespace fsdp {

/// Returns once all requests are complete, or false after `timeout_s` (0: never) of a WaitTimer or once `given_up` is set.
/// Polls for a moment, since most messages are near, then gives its core to whoever wants it between two polls. Sleeping
/// instead gained nothing more (two and four ranks on two cores, idle and busy, 3 MB collectives between computations), cost
/// 0.1 ms per small collective, and stops messages under way.
bool wait_all(std::span<MPI_Request> requests, double timeout_s, const std::atomic<bool>& given_up);

}  // namespace fsdp
