// MeetingPlace is the shared memory of one group: a barrier and, for each rank, a staging area and a description of the rank's
// buffer in the current collective (Shown).
//
// A waiting rank spins for two microseconds, then yields its core between two checks, then sleeps (futex) until the last rank
// arrives. Ranks often share cores, so a rank that waits long must not occupy one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/call.hpp"
#include "comm/shm/segment.hpp"

namespace fsdp {

/// What the other ranks can read about one rank's call of a collective.
struct Shown {
  Call call;
  std::int32_t window;   // the number of the allocate() call that made the buffer, or a constant below
  std::uint64_t offset;  // where the buffer begins in the memory of that allocate() call
  std::uint64_t count;
};
/// Values of Shown::window: `not_shared` if the buffer is not in shared memory, `nobody_else_reads` if the group has one rank.
inline constexpr std::int32_t not_shared = -1, nobody_else_reads = -2;

/// The data that each rank sends to the others while shared memory is set up.
struct Note {
  SegmentHandle segment;
  std::uint64_t bytes = 0;
  std::int32_t color = 0, key = 0, world_rank = 0;
  std::array<char, 92> problem{};  // why a step failed on this rank; empty: it did not
};
/// Sends every rank's note to every rank; collective.
using Exchange = std::function<std::vector<Note>(const Note& mine)>;

/// Runs `step`, which may fill in `mine`, then exchanges notes. If `step` threw on any rank, every rank throws
/// SharedMemoryUnavailable; the message contains `host`. Collective.
std::vector<Note> agree_on_notes(const Exchange& exchange, Note& mine, const std::string& host,
                                 const std::function<void()>& step);

/// Shared memory cannot be set up. Thrown on all ranks of the exchange.
struct SharedMemoryUnavailable : RunError {
  using RunError::RunError;
};

struct MeetingOptions {
  double timeout_s = 0;  // 0: no limit
  std::string host;
  std::size_t staging_half_bytes = std::size_t{512} << 10;
};

class MeetingPlace {
 public:
  /// Makes the meeting place of a group. `members` are the ranks of that group, as numbered in `exchange`; the caller is
  /// members[rank]. `job` is the meeting place of the whole job, or null if this group is the whole job: abort() and timeouts
  /// always end the whole job. If any rank fails, all ranks of the exchange throw. Collective over the exchange.
  static std::shared_ptr<MeetingPlace> make(const Exchange& exchange, const std::vector<std::size_t>& members, std::size_t rank,
                                            int world_rank, const MeetingOptions& options, std::shared_ptr<MeetingPlace> job);

  /// Returns after all ranks have arrived; memory that they wrote before is then visible. Throws GroupAborted after abort(),
  /// and CollectiveTimeout after any rank has waited for longer than the time limit. From then on, every call throws.
  void meet(const Called& called);
  void abort() noexcept;

  /// Returns Shown number `turn` (0 or 1) of `rank`. Each rank uses its two Shown alternately, so that it can write one while
  /// other ranks still read the other.
  Shown& shown(std::size_t rank, std::size_t turn);
  /// Returns half number `half` (0 or 1) of the staging area of `rank`. A half has staging_half_bytes() bytes. A group of one
  /// rank has no staging area.
  std::byte* staging(std::size_t rank, std::size_t half);
  std::size_t staging_half_bytes() const { return staging_half_bytes_; }
  /// The size of the shared memory, divided by the number of ranks.
  std::size_t bytes_per_rank() const { return segment_.bytes() / ranks_; }
  /// Returns bytes_per_rank() of a group of `ranks` ranks with default options. Memory plans use it, because they have no
  /// group.
  static std::size_t planned_bytes_per_rank(std::size_t ranks);

  const MeetingOptions& options() const { return options_; }
  int world_rank(std::size_t rank) const { return world_ranks_[rank]; }

 private:
  struct Head;
  struct Place;
  MeetingPlace(std::size_t ranks, std::size_t me, const MeetingOptions& options);
  Head& head() const;
  Place& place(std::size_t rank) const;
  std::size_t staging_offset() const;
  std::size_t segment_bytes() const;
  MeetingPlace& whole() { return job_ ? *job_ : *this; }
  void throw_if_over();
  void give_up(std::uint32_t round, const Called& called);

  std::size_t ranks_, me_;
  MeetingOptions options_;
  std::size_t staging_half_bytes_;
  Segment segment_;
  std::vector<int> world_ranks_;
  std::shared_ptr<MeetingPlace> job_;  // null: this is the whole job's meeting place
};

}  // namespace fsdp
