// Observers see each operation that an executor runs: the clock (work_clock.hpp), the flight record (flight.hpp), the trace
// (record/trace.hpp), and tests that delay an operation or let it fail. Ginkgo's log::Logger has the same purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// The times at which an operation began and ended on this rank, by the clock of now_ns().
struct OperationTime {
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// One run of a list of operations. The elements of `times` and `kernels` belong to the operations of the same index. If only
/// the beginning of the list runs, there are fewer of them.
struct ListRun {
  const std::vector<Operation>& operations;
  std::uint64_t update;  // the number of the update; 0: evaluation, decoding or publish_parameters()
  std::span<const std::shared_ptr<Stream>> streams;
  std::span<const OperationTime> times;
  std::span<const KernelTimes> kernels;
  /// True if `times` and `kernels` are known: on a CPU from end() of the operation on, on a GPU in finished().
  bool is_timed = false;
};

/// A function that is not overridden does nothing.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Returns true if this observer needs the times of the list, which is about to run. A GPU measures them only then.
  virtual bool needs_times(const ListRun&) { return false; }
  /// Called directly before and after operation `index`, by the thread that runs the work of its stream. On a GPU, the
  /// operation is queued between the two calls and runs later. An exception of begin() ends the list, as one of the operation.
  virtual void begin(const ListRun&, std::size_t /*index*/) {}
  virtual void end(const ListRun&, std::size_t /*index*/) {}
  /// The list has finished without an error, and all streams are idle.
  virtual void finished(const ListRun&) {}
};

}  // namespace fsdp
