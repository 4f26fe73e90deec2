#include "comm/mpi/wait.hpp"

#include <sched.h>

#include <chrono>
#include <thread>

#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "comm/mpi/check_mpi.hpp"

namespace fsdp {

WaitPolicy choose_wait_policy(MPI_Comm node) {
  // A rank may be bound to some of the cores: what counts is how many all ranks have together.
  cpu_set_t cores;
  CPU_ZERO(&cores);
  check_errno(sched_getaffinity(0, sizeof(cores), &cores) == 0, "sched_getaffinity");
  FSDP_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof(cores), MPI_BYTE, MPI_BOR, node));
  int ranks = 0;
  FSDP_CHECK_MPI(MPI_Comm_size(node, &ranks));
  WaitPolicy policy;
  if (ranks > CPU_COUNT(&cores)) policy.sleep_s = 20e-6;
  return policy;
}

void wait_all(std::span<MPI_Request> requests, const WaitPolicy& policy) {
  const Timer waited;
  while (true) {
    int done = 0;
    FSDP_CHECK_MPI(MPI_Testall(narrow<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done) return;
    if (waited.seconds() < policy.spin_s) continue;
    if (policy.sleep_s > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(policy.sleep_s));
    else
      sched_yield();
  }
}

}  // namespace fsdp
