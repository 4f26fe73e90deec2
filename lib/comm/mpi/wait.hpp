// Waiting for messages without taking the cores from ranks that compute.
#pragma once

#include <mpi.h>

#include <span>

namespace fsdp {

/// Spin first, since most messages are near; then give the core away. Sleeping costs up to a timer tick when the message comes, so it is
/// done only where ranks outnumber cores and spinning would hold up the very rank that is waited for.
struct WaitPolicy {
  double spin_s = 50e-6;
  double sleep_s = 0;  // 0: sched_yield
};

/// The policy for this node. Collective over `node`, the ranks that share it.
WaitPolicy choose_wait_policy(MPI_Comm node);

/// Returns once all requests are complete.
void wait_all(std::span<MPI_Request> requests, const WaitPolicy& policy);

}  // namespace fsdp
