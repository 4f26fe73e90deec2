#include "comm/shm/shm_communicator.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/system.hpp"
#include "comm/member.hpp"
#include "comm/packed.hpp"
#include "comm/shm/meeting_place.hpp"
#include "comm/tree_sum.hpp"

namespace fsdp {

namespace {

// Contributions up to this size are always copied to the staging area.
constexpr std::size_t small_bytes = std::size_t{16} << 10;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// The memory of one allocate(): this rank's segment and mappings of all other ranks' segments.
struct Window {
  // The size of a header before the memory that allocate() returns. The header has a pointer to the window; the release
  // function of a buffer, which is a plain function, finds the window by it.
  static constexpr std::size_t header_bytes = 4096;

  std::vector<Segment> segments;  // by rank
  bool in_use = true;             // false: this rank has released it, and the next allocate() drops it

  std::byte* data(std::size_t rank) const { return segments[rank].data() + header_bytes; }
  std::size_t bytes(std::size_t rank) const { return segments[rank].bytes() - header_bytes; }
};
using WindowOwner = std::shared_ptr<Window>;

void release_window(std::byte* data, std::size_t) {
  const auto* owner = *reinterpret_cast<WindowOwner**>(data - Window::header_bytes);
  (*owner)->in_use = false;
  delete owner;
}

class ShmCommunicator final : public GroupMember {
 public:
  ShmCommunicator(std::shared_ptr<MeetingPlace> place, std::shared_ptr<MeetingPlace> job, int rank, int size)
      : GroupMember(rank, size), place_(std::move(place)), job_(std::move(job)), seen_(ranks()), inputs_(ranks()) {}

  std::string description() const override { return "shared memory, " + plural(size(), "rank"); }
  std::size_t staging_bytes() const override { return place_->bytes_per_rank(); }
  std::size_t borrowed_bytes() const override;

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override;
  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override;
  void all_reduce(Stream& stream, float* data, std::size_t n, DType reduce_dtype) override {
    with_element(reduce_dtype, [&]<class In>() { sum_everywhere<float, In>(stream, data, n); });
  }
  void all_reduce(Stream& stream, double* data, std::size_t n) override { sum_everywhere(stream, data, n); }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t n) override {
    sum_everywhere(stream, reinterpret_cast<std::uint64_t*>(data), n);
  }
  void broadcast(void* data, std::size_t bytes, int root) override;
  void barrier() override { place_->meet(Call::barrier); }

  Buffer allocate(Device& device, std::size_t bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> split_by_node() override { return split(0, rank()); }
  void abort() noexcept override { place_->abort(); }

 private:
  bool is_small(std::size_t bytes) const { return ranks() > 1 && bytes <= small_bytes; }

  Exchange exchange(const Called& call);
  void enter(const Called& call, const void* data, std::size_t bytes, std::size_t count);
  void leave(const Called& call);
  std::byte* seen_data(std::size_t rank) const;
  std::byte* stage() { return place_->staging(me(), half_ = 1 - half_); }
  const std::byte* staged(std::size_t rank) const { return place_->staging(rank, half_); }

  void gather_small(const Called& call, const void* mine, std::byte* whole, std::size_t bytes);
  void gather_shares(const Called& call, std::byte* data, std::size_t total, std::size_t element_bytes);
  template <class T, class In>
  void sum_staged(std::size_t total, std::size_t rank, T* result, Into into);
  template <class T, class In>
  void reduce_shares(const Called& call, const T* data, std::size_t total, T* result, Into into);
  template <class T, class In = T>
  void sum_everywhere(Stream& stream, T* data, std::size_t n);

  std::shared_ptr<MeetingPlace> place_, job_;
  std::vector<WindowOwner> windows_;  // indexed by Shown::window; null after this rank has dropped the window
  // The two halves of the staging area are used alternately, and so are the two Shown of a rank. Before one of the two is used
  // again, all ranks pass a barrier with the other one; after that, no rank reads the old contents.
  std::size_t half_ = 0, turn_ = 0;
  std::vector<Shown> seen_;  // by rank: what each rank shows in the current collective
  bool some_in_place_ = false, all_in_place_ = false;
  std::vector<const void*> inputs_;
};

std::size_t ShmCommunicator::borrowed_bytes() const {
  std::size_t bytes = 0;
  for (const WindowOwner& window : windows_)
    for (std::size_t r = 0; window && r < ranks(); ++r)
      if (r != me()) bytes += window->bytes(r) / ranks();
  return bytes;
}

void ShmCommunicator::all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) {
  expect_usable(stream);
  const Called call(Call::all_gather, stream.subject);
  const std::size_t bytes = shard_count * size_of(type);
  auto* all = static_cast<std::byte*>(whole);
  if (is_small(bytes)) {
    gather_small(call, shard, all, bytes);
  } else {
    copy_bytes(all + me() * bytes, static_cast<const std::byte*>(shard), bytes);
    enter(call, whole, ranks() * bytes, shard_count);
    gather_shares(call, all, ranks() * shard_count, size_of(type));
    leave(call);
  }
  count(Collective::all_gather, (ranks() - 1) * bytes);
}

void ShmCommunicator::reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                                     DType reduce_dtype) {
  expect_usable(stream);
  const Called call(Call::reduce_scatter, stream.subject);
  const std::size_t total = ranks() * shard_count, bytes = total * sizeof(float);
  with_element(reduce_dtype, [&]<class In>() {
    pack_shares<In>(whole, total, ranks());
    if (is_small(bytes)) {
      copy_bytes(stage(), reinterpret_cast<const std::byte*>(whole), bytes);
      enter(call, nullptr, 0, shard_count);
      sum_staged<float, In>(total, me(), shard, into);
    } else {
      enter(call, whole, bytes, shard_count);
      reduce_shares<float, In>(call, whole, total, shard, into);
      leave(call);
    }
  });
  count(Collective::reduce_scatter, size_of(reduce_dtype) * (total - shard_count));
}

void ShmCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  expect(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
  const Called call = Call::broadcast;
  const auto source = static_cast<std::size_t>(root);
  auto* mine = static_cast<std::byte*>(data);
  if (is_small(bytes)) {
    std::byte* const staging = stage();
    if (me() == source) copy_bytes(staging, mine, bytes);
    enter(call, nullptr, 0, bytes);
    if (me() != source) copy_bytes(mine, staged(source), bytes);
  } else {
    enter(call, data, bytes, bytes);
    if (seen_[source].window != not_shared) {
      if (me() != source) copy_bytes(mine, seen_data(source), bytes);
    } else {
      const std::size_t length = place_->staging_half_bytes();
      for (std::size_t piece = 0; piece < pieces_in(bytes, length); ++piece) {
        const Range part = piece_of({0, bytes}, piece, length);
        std::byte* const staging = stage();
        if (me() == source) copy_bytes(staging, mine + part.begin, part.size());
        place_->meet(call);
        if (me() != source) copy_bytes(mine + part.begin, staged(source), part.size());
      }
    }
    leave(call);
  }
  count(Collective::broadcast, static_cast<std::size_t>(tree_children(relative_to(root), size())) * bytes);
}

template <class T, class In>
void ShmCommunicator::sum_everywhere(Stream& stream, T* data, std::size_t n) {
  expect_usable(stream);
  const Called call(Call::all_reduce, stream.subject);
  pack_shares<In>(data, n, ranks());
  if (is_small(n * sizeof(T))) {
    // Every rank adds up all shares.
    copy_bytes(stage(), reinterpret_cast<const std::byte*>(data), n * sizeof(T));
    enter(call, nullptr, 0, n);
    for (std::size_t r = 0; r < ranks(); ++r) sum_staged<T, In>(n, r, data + share_of(n, r).begin, Into::overwrite);
  } else {
    enter(call, data, n * sizeof(T), n);
    // Each rank first overwrites its own share in its own buffer, which no other rank reads before the barrier. After the
    // barrier it overwrites the other shares in its buffer, which no other rank reads any more.
    reduce_shares<T, In>(call, data, n, data + share_of(n, me()).begin, Into::overwrite);
    if (some_in_place_) place_->meet(call);
    gather_shares(call, reinterpret_cast<std::byte*>(data), n, sizeof(T));
    leave(call);
  }
  // With messages, a rank would send the other shares to their owners, then the sum of its own share to all other ranks.
  const std::size_t mine = share_of(n, me()).size();
  count(Collective::all_reduce, sizeof(In) * (n - mine) + sizeof(T) * (ranks() - 1) * mine);
}

// Gathers `bytes` bytes of each rank into `whole`, ordered by rank. `mine` may be this rank's part of `whole`.
void ShmCommunicator::gather_small(const Called& call, const void* mine, std::byte* whole, std::size_t bytes) {
  copy_bytes(stage(), static_cast<const std::byte*>(mine), bytes);
  enter(call, nullptr, 0, bytes);
  for (std::size_t r = 0; r < ranks(); ++r) copy_bytes(whole + r * bytes, staged(r), bytes);
}

// Copies all other shares of `data` from the ranks that own them. `data` is the buffer that this rank shows in the current
// collective.
void ShmCommunicator::gather_shares(const Called& call, std::byte* data, std::size_t total, std::size_t element_bytes) {
  const auto bytes_of = [&](std::size_t rank) {
    const Range range = share_of(total, rank);
    return Range{range.begin * element_bytes, range.end * element_bytes};
  };
  const std::size_t longest = std::max<std::size_t>(1, bytes_of(0).size());
  const std::size_t length = all_in_place_ ? longest : place_->staging_half_bytes();
  for (std::size_t piece = 0; piece < pieces_in(longest, length); ++piece) {
    if (!all_in_place_) {
      const Range part = piece_of(bytes_of(me()), piece, length);
      std::byte* const staging = stage();
      if (seen_[me()].window == not_shared) copy_bytes(staging, data + part.begin, part.size());
      place_->meet(call);
    }
    // Each rank begins with its neighbor, so that they do not all read from one rank at once.
    for (std::size_t step = 1; step < ranks(); ++step) {
      const std::size_t r = (me() + step) % ranks();
      const Range part = piece_of(bytes_of(r), piece, length);
      copy_bytes(data + part.begin, seen_[r].window == not_shared ? staged(r) : seen_data(r) + part.begin, part.size());
    }
  }
}

// Overwrites `result` with the canonical sum over ranks of their staged data for the share of `rank`, or adds that sum to it.
template <class T, class In>
void ShmCommunicator::sum_staged(std::size_t total, std::size_t rank, T* result, Into into) {
  const Range range = share_of(total, rank);
  for (std::size_t r = 0; r < ranks(); ++r)
    inputs_[r] = packed<In>(reinterpret_cast<const T*>(staged(r)) + range.begin, range.size());
  tree_sum<T, In>(inputs_, range.size(), result, into);
}

// Overwrites `result` with the canonical sum over ranks of this rank's share of `data`, or adds that sum to it. `data` is
// packed, and is the buffer that this rank shows in the current collective. `result` may be that share itself.
template <class T, class In>
void ShmCommunicator::reduce_shares(const Called& call, const T* data, std::size_t total, T* result, Into into) {
  const Range mine = share_of(total, me());
  const std::size_t longest = std::max<std::size_t>(1, share_of(total, 0).size());
  // Half a staging area holds one piece for every rank.
  const std::size_t length =
      all_in_place_ ? longest : std::max<std::size_t>(1, place_->staging_half_bytes() / ranks() / sizeof(In) / 16 * 16);
  const auto at = [&](const T* whole, Range share, Range part) {
    return packed<In>(whole + share.begin, share.size()) + (part.begin - share.begin);
  };
  for (std::size_t piece = 0; piece < pieces_in(longest, length); ++piece) {
    if (!all_in_place_) {
      auto* const staging = reinterpret_cast<In*>(stage());
      for (std::size_t r = 0; r < ranks() && seen_[me()].window == not_shared; ++r) {
        const Range share = share_of(total, r), part = piece_of(share, piece, length);
        if (r != me()) std::copy_n(at(data, share, part), part.size(), staging + r * length);
      }
      place_->meet(call);
    }
    const Range part = piece_of(mine, piece, length);
    if (part.empty()) continue;
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (r == me())
        inputs_[r] = at(data, mine, part);
      else if (seen_[r].window == not_shared)
        inputs_[r] = reinterpret_cast<const In*>(staged(r)) + me() * length;
      else
        inputs_[r] = at(reinterpret_cast<const T*>(seen_data(r)), mine, part);
    }
    tree_sum<T, In>(inputs_, part.size(), result + (part.begin - mine.begin), into);
  }
}

// Begins a collective: describes this rank's buffer to the other ranks, waits for all ranks, and checks that all are in the
// same call. All ranks compare the same calls, so that all throw or none.
void ShmCommunicator::enter(const Called& call, const void* data, std::size_t bytes, std::size_t n) {
  turn_ = 1 - turn_;
  Shown& mine = place_->shown(me(), turn_);
  mine = {call.call, ranks() == 1 ? nobody_else_reads : not_shared, 0, n};
  for (std::size_t w = 0; w < windows_.size() && bytes != 0; ++w) {
    if (!windows_[w]) continue;
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(windows_[w]->data(me())),
                         at = reinterpret_cast<std::uintptr_t>(data);
    if (at < begin || at + bytes > begin + windows_[w]->bytes(me())) continue;
    mine.window = narrow<std::int32_t>(w);
    mine.offset = at - begin;
  }
  place_->meet(call);
  some_in_place_ = false;
  all_in_place_ = true;
  bool same = true;
  for (std::size_t r = 0; r < ranks(); ++r) {
    seen_[r] = place_->shown(r, turn_);
    same = same && seen_[r].count == seen_[0].count && seen_[r].call == seen_[0].call;
    const bool in_place = seen_[r].window != not_shared;
    some_in_place_ = some_in_place_ || in_place;
    all_in_place_ = all_in_place_ && in_place;
  }
  expect(same, "all ranks call the same collective with the same count");
}

// Ends a collective. Waits for all ranks if they read buffers in place: until then, others may read the buffer of this rank.
void ShmCommunicator::leave(const Called& call) {
  if (some_in_place_) place_->meet(call);
}

std::byte* ShmCommunicator::seen_data(std::size_t rank) const {
  const WindowOwner& window = windows_[static_cast<std::size_t>(seen_[rank].window)];
  expect(window != nullptr, "a buffer from allocate() is given back by all ranks before the next allocate()");
  return window->data(rank) + seen_[rank].offset;
}

Exchange ShmCommunicator::exchange(const Called& call) {
  return [this, call](const Note& mine) {
    static_assert(sizeof(Note) <= small_bytes);
    std::vector<Note> all(ranks(), mine);
    if (ranks() > 1) gather_small(call, &mine, reinterpret_cast<std::byte*>(all.data()), sizeof(Note));
    return all;
  };
}

Buffer ShmCommunicator::allocate(Device& device, std::size_t bytes) {
  expect(is_host(device.kind()), "this backend moves memory that the CPU reaches");
  if (ranks() == 1) return device.allocate(bytes);
  const Exchange tell = exchange(Call::allocate);
  const MeetingOptions& options = place_->options();
  for (WindowOwner& window : windows_)
    if (window && !window->in_use) window.reset();

  Note note;
  note.bytes = bytes;
  note.world_rank = place_->world_rank(me());
  std::vector<Note> all = tell(note);
  const std::uint64_t together =
      std::accumulate(all.begin(), all.end(), std::uint64_t{0}, [](std::uint64_t sum, const Note& n) { return sum + n.bytes; });
  if (together == 0) return {};

  const auto window = std::make_shared<Window>();
  window->segments.resize(ranks());
  Segment& mine = window->segments[me()];
  try {
    // 1. Without this check, the system could kill a process that reserves too much, instead of returning an error. All ranks
    // check before one reserves: memory that others have reserved is no longer available.
    agree_on_notes(tell, note, options.host, [&] {
      if (const std::size_t available = available_memory_bytes(); together > available)
        throw std::runtime_error(format("{} available", format_bytes(static_cast<double>(available))));
    });
    // 2. Each rank makes its own segment, so that the memory is near its cores.
    all = agree_on_notes(tell, note, options.host, [&] {
      mine = Segment::create(Window::header_bytes + bytes);
      mine.reserve(0, mine.bytes());
      note.segment = mine.handle();
    });
    // 3. Each rank opens the others' segments.
    agree_on_notes(tell, note, options.host, [&] {
      for (std::size_t r = 0; r < ranks(); ++r) {
        if (r == me()) continue;
        window->segments[r] = Segment::open(all[r].segment);
        window->segments[r].close_file();
      }
    });
  } catch (const SharedMemoryUnavailable& error) {
    throw SharedMemoryUnavailable(
        format("{} of shared memory: {}", format_bytes(static_cast<double>(together)), std::string(error.what())));
  }
  mine.close_file();
  windows_.push_back(window);
  auto* const owner = new WindowOwner(window);
  std::memcpy(mine.data(), &owner, sizeof(owner));
  return Buffer(window->data(me()), bytes, release_window);
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, int key) {
  const Exchange tell = exchange(Call::split);
  Note note;
  note.color = color;
  note.key = key;
  const std::vector<Note> all = tell(note);
  std::vector<std::size_t> members;
  for (std::size_t r = 0; r < ranks(); ++r)
    if (all[r].color == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) { return all[a].key < all[b].key; });
  const auto rank = static_cast<std::size_t>(std::find(members.begin(), members.end(), me()) - members.begin());
  const auto job = job_ ? job_ : place_;
  auto place = MeetingPlace::make(tell, members, rank, place_->world_rank(me()), place_->options(), job);
  return std::make_unique<ShmCommunicator>(std::move(place), job, narrow<int>(rank), narrow<int>(members.size()));
}

}  // namespace

std::unique_ptr<Communicator> share_memory(Communicator& comm, const ShmOptions& options) {
  const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  expect(options.world_ranks.size() == ranks, "every rank has a world rank");
  const auto stream = make_host_stream();
  static_assert(sizeof(Note) % size_of(DType::f32) == 0);
  const Exchange exchange = [&](const Note& mine) {
    std::vector<Note> all(ranks);
    comm.all_gather(*stream, &mine, all.data(), sizeof(Note) / size_of(DType::f32), DType::f32);
    return all;
  };
  std::vector<std::size_t> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  auto place = MeetingPlace::make(exchange, members, me, options.world_ranks[me],
                                  {.timeout_s = options.timeout_s, .host = options.host}, nullptr);
  return std::make_unique<ShmCommunicator>(std::move(place), nullptr, comm.rank(), comm.size());
}

}  // namespace fsdp
