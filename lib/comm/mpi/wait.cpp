#include "comm/mpi/wait.hpp"

#include <sched.h>

#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "comm/mpi/check_mpi.hpp"

namespace fsdp {

bool wait_all(std::span<MPI_Request> requests, double timeout_s, const std::atomic<bool>& given_up) {
  constexpr double spin_s = 50e-6;
  WaitTimer waited;
  while (true) {
    int done = 0;
    FSDP_CHECK_MPI(MPI_Testall(narrow<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done) return true;
    const double seconds = waited.seconds();
    if ((timeout_s > 0 && seconds > timeout_s) || given_up.load(std::memory_order_relaxed)) return false;
    if (seconds > spin_s) sched_yield();
  }
}

}  // namespace fsdp
