// The memory through which the ranks of one group meet: a barrier, the data that each rank shows to the others, and a staging
// area for each rank.
//
// A waiting rank spins for two microseconds, then yields its core between looks, then sleeps (futex) until the last rank
// arrives: ranks often share cores, and a rank that waits for long must cost nothing.
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

/// What one rank shows to the others in one collective.
struct Shown {
  Call call;
  std::int32_t window;   // the window with its buffer: a number from allocate(), or one of the two constants below
  std::uint64_t offset;  // of the buffer, from the start of the window
  std::uint64_t count;
};
inline constexpr std::int32_t not_shared = -1, nobody_else_reads = -2;

/// The data that each rank sends to the others while shared memory is set up.
struct Note {
  SegmentHandle segment;
  std::uint64_t bytes = 0;
  std::int32_t color = 0, key = 0, world_rank = 0;
  std::array<char, 92> problem{};  // empty: no problem
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
  /// Makes the meeting place of `members` (ranks in the exchange, in order); this rank is number `rank` of them. An error on
  /// any rank is thrown on all ranks of the exchange. `job` is the meeting place of the group of the whole job, or null if this
  /// is that group: abort() and timeouts apply to the whole job. Collective over the exchange.
  static std::shared_ptr<MeetingPlace> make(const Exchange& exchange, const std::vector<std::size_t>& members, std::size_t rank,
                                            int world_rank, const MeetingOptions& options, std::shared_ptr<MeetingPlace> job);

  /// Returns after all ranks have arrived; memory that they wrote before is then visible. Throws GroupAborted after abort(),
  /// and CollectiveTimeout after any rank has waited too long: from then on, every call throws.
  void meet(const Called& called);
  void abort() noexcept;

  /// `turn` is 0 or 1: a rank can show new data in one while another rank still reads the other.
  Shown& shown(std::size_t rank, std::size_t turn);
  /// `half` is 0 or 1. Both halves have options.staging_half_bytes; a group of one has none.
  std::byte* staging(std::size_t rank, std::size_t half);
  std::size_t staging_half_bytes() const { return staging_half_bytes_; }
  /// This rank's part of the shared memory.
  std::size_t bytes_per_rank() const { return segment_.bytes() / ranks_; }
  /// bytes_per_rank() of a group of `ranks` ranks with staging areas of the default size; needs no group.
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
