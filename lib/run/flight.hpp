// The flight record lists the last operations of a rank, so that a user can find out why a job has died. (PyTorch's flight
// recorder for NCCL has the same purpose.) A record has a lane for each stream and one for the host's work between operations.
// A lane is a ring buffer that one thread at a time writes to. So a new entry costs a few stores, takes no lock and allocates
// nothing. Whether the record survives the process depends on where its memory is: see record/flight.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/timer.hpp"
#include "plan/layout.hpp"
#include "plan/plan.hpp"
#include "run/observer.hpp"

namespace fsdp {

/// One operation. Other processes read these bytes from shared memory or a file.
struct FlightEntry {
  std::uint64_t number = 0;               // this entry's number in its lane, from 1; 0: empty
  std::uint64_t update = 0;               // 0: the operation is not part of an update
  std::uint64_t bytes = 0;                // of this rank's part of a collective, load or unload; else 0
  std::int64_t begin_ns = 0, end_ns = 0;  // by now_ns(); 0: unknown
  std::int32_t micro_batch = 0;
  std::int32_t exchanges = 0;   // 1: a collective, in which ranks wait for each other
  std::array<char, 48> what{};  // "reduce-scatter block 3", with a final NUL
};
static_assert(sizeof(FlightEntry) == 96);

struct FlightLane {
  static constexpr std::size_t size = 64;
  std::atomic<std::uint64_t> begun = 0;  // number of the last entry; on a GPU it may only be queued
  std::atomic<std::uint64_t> done = 0;   // number of the last entry known to be done
  std::array<FlightEntry, size> entries;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);

/// One lane for each StreamId, then the host's lane.
inline constexpr std::size_t flight_lanes = stream_count + 1, host_lane = stream_count;
using FlightLanes = std::array<FlightLane, flight_lanes>;

/// An entry whose field `what` has this text, cut to the size of the field.
FlightEntry flight_entry(std::string_view what);
/// Called by the thread that owns the lane. A process may die between any two stores, so a reader may use an entry only if
/// `begun` has reached the entry's number.
inline void begin_operation(FlightLane& lane, const FlightEntry& entry, std::uint64_t update, std::int64_t begin_ns) {
  const std::uint64_t number = lane.begun.load(std::memory_order_relaxed) + 1;
  FlightEntry& here = lane.entries[number % FlightLane::size];
  here = entry;
  here.number = number;
  here.update = update;
  here.begin_ns = begin_ns;
  lane.begun.store(number, std::memory_order_release);
}
inline void end_operation(FlightLane& lane, std::int64_t end_ns) {
  const std::uint64_t number = lane.begun.load(std::memory_order_relaxed);
  lane.entries[number % FlightLane::size].end_ns = end_ns;
  lane.done.store(number, std::memory_order_release);
}
/// Marks all operations that were given to a stream as done, with unknown times.
inline void end_all_operations(FlightLane& lane) {
  lane.done.store(lane.begun.load(std::memory_order_relaxed), std::memory_order_release);
}

/// Writes an entry in the lane of its stream when each operation begins and ends. If a stream only queues operations (a GPU),
/// the entry is written when the operation is queued, and all entries are marked done once the list has finished.
class FlightObserver : public Observer {
 public:
  /// The arguments must outlive this object.
  FlightObserver(FlightLanes& lanes, const Plan& plan, const Layout& layout);
  void begin(const ListRun& run, std::size_t index) override;
  void end(const ListRun& run, std::size_t index) override;
  void finished(const ListRun& run) override;

 private:
  FlightLane& lane_of(const Operation& op) { return lanes_[static_cast<std::size_t>(op.stream)]; }

  FlightLanes& lanes_;
  /// The lists of the plan, with an entry for each operation that has the fields known before the run.
  std::vector<std::pair<const std::vector<Operation>*, std::vector<FlightEntry>>> lists_;
};

}  // namespace fsdp
