// How long a rank computes, and how long it waits for other streams.
#pragma once

#include "run/observer.hpp"

namespace fsdp {

/// Seconds that the compute stream spends, by kind of work; streams that run work immediately count, too. `exposed` is the time
/// that the compute stream waits for other streams. If streams run work immediately, it is the time of communication.
/// `collectives` is the time of collectives, loads and unloads on all streams.
struct WorkTimes {
  double gemm = 0, attention = 0, other_kernels = 0, exposed = 0, optimizer = 0;
  double collectives = 0;
  double total() const { return gemm + attention + other_kernels + exposed + optimizer; }
  WorkTimes& operator+=(const WorkTimes& other) {
    gemm += other.gemm, attention += other.attention, other_kernels += other.other_kernels;
    exposed += other.exposed, optimizer += other.optimizer, collectives += other.collectives;
    return *this;
  }
};

/// Adds up the times of all lists that were timed. On a GPU, gemm and attention count as other kernels.
class WorkClock : public Observer {
 public:
  void finished(const ListRun& run) override;
  const WorkTimes& times() const { return times_; }
  void reset() { times_ = {}; }

 private:
  WorkTimes times_;
};

}  // namespace fsdp
