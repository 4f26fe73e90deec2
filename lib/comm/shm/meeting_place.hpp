// The memory through which the ranks of one group meet: a barrier, what each rank shows to the others, and a staging area of
// each rank.
//
// Whoever waits spins for two microseconds, then gives its core away between looks, then sleeps (futex) until the last rank
// comes: ranks often share cores, and a rank that waits for long must cost nothing.
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
  std::int32_t window;   // where its buffer lies: a number from allocate(), or one of the two below
  std::uint64_t offset;  // in the window
  std::uint64_t count;
};
inline constexpr std::int32_t not_shared = -1, nobody_else_reads = -2;

/// One rank's news to the others while shared memory is set up.
struct Note {
  SegmentHandle segment;
  std::uint64_t bytes = 0;
  std::int32_t color = 0, key = 0, world_rank = 0;
  std::array<char, 92> problem{};  // empty: none
};
/// Gives every rank's note to every rank; collective.
using Exchange = std::function<std::vector<Note>(const Note& mine)>;

/// Runs `step`, which may fill in `mine`, exchanges notes, and throws SharedMemoryUnavailable on every rank if `step` threw on
/// any; `host` is for its text. Collective.
std::vector<Note> agree_on_notes(const Exchange& exchange, Note& mine, const std::string& host,
                                 const std::function<void()>& step);

/// Shared memory cannot be set up. The same on all ranks of the exchange.
struct SharedMemoryUnavailable : RunError {
  using RunError::RunError;
};

struct MeetingOptions {
  double timeout_s = 0;  // 0: none
  std::string host;
  std::size_t staging_half_bytes = std::size_t{512} << 10;
};

class MeetingPlace {
 public:
  /// A place for `members` (places in the exchange, in order), of which this rank is number `rank`. Errors of any rank are
  /// thrown by all of the exchange. `job` is the place of the group that this one was split from: abort() and time-outs hold
  /// for the whole job. Collective over the exchange.
  static std::shared_ptr<MeetingPlace> make(const Exchange& exchange, const std::vector<std::size_t>& members, std::size_t rank,
                                            int world_rank, const MeetingOptions& options, std::shared_ptr<MeetingPlace> job);

  /// Returns once all ranks are here; what they wrote before is visible. Throws GroupAborted after abort() and
  /// CollectiveTimeout once any rank waited for too long: from then on, always.
  void meet(const Called& called);
  void abort() noexcept;

  /// `turn` is 0 or 1: two, so that one rank may show the next thing while another still reads the last.
  Shown& shown(std::size_t rank, std::size_t turn);
  /// `half` is 0 or 1. Both are options.staging_half_bytes long; none in a group of one.
  std::byte* staging(std::size_t rank, std::size_t half);
  std::size_t staging_half_bytes() const { return staging_half_bytes_; }
  /// This rank's part of the memory.
  std::size_t bytes_per_rank() const { return segment_.bytes() / ranks_; }
  /// The same of a group that is not there, with the usual staging areas.
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
  std::shared_ptr<MeetingPlace> job_;  // null: this one, which is the whole job's
};

}  // namespace fsdp
