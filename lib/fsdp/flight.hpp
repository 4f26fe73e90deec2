// What a rank has done last: the flight record, for those who look for what went wrong once a job has died. (The idea is that
// of PyTorch's flight recorder for NCCL.) A record has a lane for each stream and one for what the host does between
// operations. A lane is written by one thread alone, and holds its last entries in a ring: so that a note costs some stores,
// takes no lock and allocates nothing. Whoever provides the memory decides what survives: see train/flight.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/timer.hpp"
#include "fsdp/layout.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// One operation. Other processes read it as it lies in memory or in a file.
struct FlightEntry {
  std::uint64_t number = 0;               // in its lane, from 1; 0: none
  std::uint64_t update = 0;               // 0: outside of updates
  std::uint64_t bytes = 0;                // of this rank's part of what a collective, a load or an unload moves; else 0
  std::int64_t begin_ns = 0, end_ns = 0;  // by now_ns(); 0: not known
  std::int32_t micro_batch = 0;
  std::int32_t exchanges = 0;   // 1: a collective, in which ranks wait for each other
  std::array<char, 48> what{};  // "reduce-scatter block 3", with a final NUL
};
static_assert(sizeof(FlightEntry) == 96);

struct FlightLane {
  static constexpr std::size_t size = 64;
  std::atomic<std::uint64_t> begun = 0;  // entries, the last one included; on a GPU: given to its stream
  std::atomic<std::uint64_t> done = 0;   // of these, known to be done
  std::array<FlightEntry, size> entries;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);

/// A lane for each StreamId, then the host's.
inline constexpr std::size_t flight_lanes = stream_count + 1, host_lane = stream_count;
using FlightLanes = std::array<FlightLane, flight_lanes>;

/// An entry of this name, cut to what has room.
FlightEntry flight_entry(std::string_view what);
/// Those of a list of operations, with what is known beforehand: begin_operation() copies them.
std::vector<FlightEntry> flight_entries(const std::vector<Operation>& operations, const Layout& layout);

/// Of the thread whose lane it is. A process may die between any two stores: an entry counts once `begun` says so.
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
/// All that was given to a stream is done; when each was, is not known.
inline void end_all_operations(FlightLane& lane) {
  lane.done.store(lane.begun.load(std::memory_order_relaxed), std::memory_order_release);
}

}  // namespace fsdp
