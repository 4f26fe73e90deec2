#include "comm/shm/meeting_place.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <utility>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "device/cpu/processor.hpp"

namespace fsdp {

namespace {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 4, "the kernel and other processes see the bare word");

constexpr std::size_t page = 4096;

// Sleeps while `word` equals `value`, for at most `nanoseconds`. May return early.
void sleep_while(SharedWord& word, std::uint32_t value, long nanoseconds) {
  const timespec time{0, nanoseconds};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_all(SharedWord& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// The values of Head::ended: whether and why the job has ended, so that all ranks report the same reason. The first rank that
// exceeds the time limit sets `is_written`, writes which ranks are missing, and then sets `missed`.
constexpr std::uint32_t goes_on = 0, aborted = 1, is_written = 2, missed = 3;

}  // namespace

struct alignas(64) MeetingPlace::Head {
  SharedWord round;                // the number of times that all ranks have met
  alignas(64) SharedWord arrived;  // the number of ranks that have arrived in this round
  SharedWord sleepers;
  // Only used in the meeting place of the whole job:
  alignas(64) SharedWord ended;  // one of the four values above
  std::array<char, 64> what;     // the call at which ranks were missing, with a final NUL
};

struct alignas(64) MeetingPlace::Place {
  SharedWord arrived;  // the number of the last round at which this rank arrived, plus one
  bool is_missed;      // only in the meeting place of the whole job, after that job has ended
  std::array<Shown, 2> shown;
};

std::vector<Note> agree_on_notes(const Exchange& exchange, Note& mine, const std::string& host,
                                 const std::function<void()>& step) {
  mine.problem = {};
  try {
    step();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::memcpy(mine.problem.data(), text.data(), std::min(text.size(), mine.problem.size() - 1));
  }
  const std::vector<Note> all = exchange(mine);
  for (const Note& note : all)
    if (note.problem[0] != '\0')
      throw SharedMemoryUnavailable(
          format("the ranks of a node cannot share memory (rank {} on {}: {}); free memory, use more nodes, or give "
                 "`communication by messages`, which shares none",
                 note.world_rank, host, note.problem.data()));
  return all;
}

MeetingPlace::MeetingPlace(std::size_t ranks, std::size_t me, const MeetingOptions& options)
    : ranks_(ranks), me_(me), options_(options), staging_half_bytes_(ranks == 1 ? 0 : options.staging_half_bytes) {
  expect(options.staging_half_bytes % 64 == 0, "staging areas are aligned");
}

std::shared_ptr<MeetingPlace> MeetingPlace::make(const Exchange& exchange, const std::vector<std::size_t>& members,
                                                 std::size_t rank, int world_rank, const MeetingOptions& options,
                                                 std::shared_ptr<MeetingPlace> job) {
  const std::shared_ptr<MeetingPlace> made(new MeetingPlace(members.size(), rank, options));
  Note note;
  note.world_rank = world_rank;
  // 1. The first member makes the memory.
  const std::size_t head_bytes = made->staging_offset();
  const std::size_t staging_bytes = 2 * made->staging_half_bytes_;
  const std::vector<Note> makers = agree_on_notes(exchange, note, options.host, [&] {
    if (rank != 0) return;
    made->segment_ = Segment::create(made->segment_bytes());
    made->segment_.reserve(0, head_bytes);
    new (made->segment_.data()) Head{};
    for (std::size_t r = 0; r < members.size(); ++r) new (&made->place(r)) Place{};
    note.segment = made->segment_.handle();
  });
  // 2. The other members open that memory; every rank reserves its own part of it.
  agree_on_notes(exchange, note, options.host, [&] {
    if (rank != 0) made->segment_ = Segment::open(makers[members[0]].segment);
    made->segment_.reserve(head_bytes + rank * staging_bytes, staging_bytes);
  });
  made->segment_.close_file();
  for (const std::size_t member : members) made->world_ranks_.push_back(makers[member].world_rank);
  made->job_ = std::move(job);
  return made;
}

std::size_t MeetingPlace::segment_bytes() const { return staging_offset() + 2 * ranks_ * staging_half_bytes_; }

std::size_t MeetingPlace::planned_bytes_per_rank(std::size_t ranks) {
  return MeetingPlace(ranks, 0, {}).segment_bytes() / ranks;
}

MeetingPlace::Head& MeetingPlace::head() const { return *std::launder(reinterpret_cast<Head*>(segment_.data())); }

MeetingPlace::Place& MeetingPlace::place(std::size_t rank) const {
  return *std::launder(reinterpret_cast<Place*>(segment_.data() + sizeof(Head) + rank * sizeof(Place)));
}

std::size_t MeetingPlace::staging_offset() const { return (sizeof(Head) + ranks_ * sizeof(Place) + page - 1) / page * page; }

Shown& MeetingPlace::shown(std::size_t rank, std::size_t turn) { return place(rank).shown[turn]; }

std::byte* MeetingPlace::staging(std::size_t rank, std::size_t half) {
  return segment_.data() + staging_offset() + (2 * rank + half) * staging_half_bytes_;
}

void MeetingPlace::throw_if_over() {
  const std::uint32_t why = whole().head().ended.load(std::memory_order_acquire);
  if (why == goes_on || why == is_written) return;
  if (why == aborted) throw GroupAborted();
  std::vector<int> ranks;
  for (std::size_t r = 0; r < whole().ranks_; ++r)
    if (whole().place(r).is_missed) ranks.push_back(whole().world_ranks_[r]);
  const std::vector<std::string> hosts(ranks.size(), options_.host);
  throw not_arrived(name_ranks(ranks, hosts), ranks, whole().head().what.data(), options_.timeout_s);
}

void MeetingPlace::abort() noexcept {
  std::uint32_t no = goes_on;
  whole().head().ended.compare_exchange_strong(no, aborted);
  // Ranks that sleep in this group wake at once; those in other groups of the job notice the abort after their current sleep.
  wake_all(head().round);
}

// Called when this rank has exceeded the time limit in `round`. Ends the job for all ranks, unless the last rank has arrived
// in the meantime.
void MeetingPlace::give_up(std::uint32_t round, const Called& called) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < ranks_; ++r)
    if (place(r).arrived.load(std::memory_order_acquire) != round + 1) ranks.push_back(world_ranks_[r]);
  const std::string what = name_of(called);
  std::uint32_t no = goes_on;
  Head& job = whole().head();
  if (ranks.empty() || !job.ended.compare_exchange_strong(no, is_written)) return;
  std::copy_n(what.begin(), std::min(what.size(), job.what.size() - 1), job.what.begin());
  for (std::size_t r = 0; r < whole().ranks_; ++r)
    whole().place(r).is_missed = std::find(ranks.begin(), ranks.end(), whole().world_ranks_[r]) != ranks.end();
  job.ended.store(missed, std::memory_order_release);
  wake_all(head().round);
}

void MeetingPlace::meet(const Called& called) {
  constexpr double spin_s = 2e-6, yield_s = 200e-6;
  constexpr long sleep_ns = 50'000'000;
  throw_if_over();
  Head& h = head();
  const std::uint32_t round = h.round.load(std::memory_order_acquire);  // no round ends without this rank
  place(me_).arrived.store(round + 1, std::memory_order_release);
  if (h.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    h.arrived.store(0, std::memory_order_relaxed);
    h.round.store(round + 1, std::memory_order_seq_cst);
    if (h.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(h.round);
    return;
  }
  const auto over = [&] { return h.round.load(std::memory_order_acquire) != round; };
  WaitTimer waited;
  while (!over()) {
    const double seconds = waited.seconds();
    if (seconds < spin_s) {
      for (int i = 0; i < 32 && !over(); ++i) relax_cpu();
      continue;
    }
    throw_if_over();
    if (options_.timeout_s > 0 && seconds > options_.timeout_s) {
      give_up(round, called);
    } else if (seconds < yield_s) {
      sched_yield();
    } else {
      // With seq_cst on both sides, either the last rank reads the new `sleepers`, or this rank reads the new round.
      h.sleepers.fetch_add(1, std::memory_order_seq_cst);
      sleep_while(h.round, round, sleep_ns);
      h.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
  }
}

}  // namespace fsdp
