#include "run/work_clock.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "plan/kind.hpp"

namespace fsdp {
namespace {

void add_time(WorkTimes& times, const Operation& op, double seconds, const KernelTimes& kernels) {
  switch (op.kind->part) {
    case UpdatePart::gather:
    case UpdatePart::reduce:
    case UpdatePart::transfer:
      times.collectives += seconds;
      break;
    case UpdatePart::optimizer:
    case UpdatePart::rounding:
      times.optimizer += seconds;
      break;
    default:  // the model's work
      times.gemm += kernels.gemm;
      times.attention += kernels.attention;
      times.other_kernels += seconds - kernels.gemm - kernels.attention;
      break;
  }
}

}  // namespace

void WorkClock::finished(const ListRun& run) {
  std::array<WorkTimes, stream_count> times_of_stream;
  std::int64_t done_ns = 0;  // when the last operation of a GPU's compute stream ended
  for (std::size_t i = 0; run.is_timed && i < run.times.size(); ++i) {
    const Operation& op = run.operations[i];
    const auto s = static_cast<std::size_t>(op.stream);
    const auto [begin_ns, end_ns] = run.times[i];
    add_time(times_of_stream[s], op, 1e-9 * static_cast<double>(end_ns - begin_ns), run.kernels[i]);
    if (op.stream != StreamId::compute || !run.streams[s]->marks_later()) continue;
    if (done_ns > 0) run.streams[s]->waited_s += 1e-9 * static_cast<double>(std::max<std::int64_t>(0, begin_ns - done_ns));
    done_ns = end_ns;
  }
  for (std::size_t s = 0; s < run.streams.size(); ++s) {
    WorkTimes& times = times_of_stream[s];
    if (s == static_cast<std::size_t>(StreamId::compute) || !run.streams[s]->is_asynchronous()) {
      times.exposed = times.collectives + std::exchange(run.streams[s]->waited_s, 0);
      times_ += times;
    } else {
      times_.collectives += times.collectives;
    }
  }
}

}  // namespace fsdp
