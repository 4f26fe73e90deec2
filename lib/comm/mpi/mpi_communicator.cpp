#include "comm/mpi/mpi_communicator.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "comm/mpi/check_mpi.hpp"
#include "comm/packed.hpp"
#include "comm/tree_sum.hpp"

namespace fsdp {

namespace {

// The size of a rank's staging buffer. It is larger if there are so many ranks that pieces would be shorter than 4 KiB. Below
// it, the longest piece of a reduction; longer pieces are no faster.
constexpr std::size_t staging_budget = std::size_t{4} << 20;
constexpr std::size_t longest_staged_piece = std::size_t{256} << 10;
constexpr std::size_t broadcast_piece = std::size_t{1} << 20;

std::size_t choose_staged_piece(std::size_t others, std::size_t piece_bytes) {
  const std::size_t affordable = std::max<std::size_t>(4096, staging_budget / (2 * std::max<std::size_t>(others, 1)));
  const std::size_t piece = std::min({longest_staged_piece, affordable, piece_bytes});
  return std::max<std::size_t>(8, piece / 8 * 8);
}

int comm_rank(MPI_Comm comm) {
  int rank = 0;
  FSDP_CHECK_MPI(MPI_Comm_rank(comm, &rank));
  return rank;
}

int comm_size(MPI_Comm comm) {
  int size = 0;
  FSDP_CHECK_MPI(MPI_Comm_size(comm, &size));
  return size;
}

// Returns the rank in MPI_COMM_WORLD of each member of `comm`.
std::vector<int> find_world_ranks(MPI_Comm comm, std::size_t ranks) {
  std::vector<int> here(ranks), there(ranks);
  std::iota(here.begin(), here.end(), 0);
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  FSDP_CHECK_MPI(MPI_Comm_group(comm, &group));
  FSDP_CHECK_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  FSDP_CHECK_MPI(MPI_Group_translate_ranks(group, narrow<int>(ranks), here.data(), world, there.data()));
  FSDP_CHECK_MPI(MPI_Group_free(&group));
  FSDP_CHECK_MPI(MPI_Group_free(&world));
  return there;
}

}  // namespace

bool wait_all(std::span<MPI_Request> requests, double timeout_s, const std::atomic<bool>& given_up) {
  constexpr double spin_s = 50e-6;
  WaitTimer waited;
  while (true) {
    int done = 0;
    FSDP_CHECK_MPI(MPI_Testall(narrow<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done) return true;
    const double seconds = waited.seconds();
    if ((timeout_s > 0 && seconds > timeout_s) || given_up.load(std::memory_order_relaxed)) return false;
    if (seconds > spin_s) sched_yield();
  }
}

std::size_t staging_of_messages(std::size_t ranks) {
  return 2 * (ranks - 1) * choose_staged_piece(ranks - 1, longest_staged_piece);
}

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::shared_ptr<const MpiJob> job)
    : MessageGroup(comm_rank(comm), comm_size(comm)),
      comm_(comm),
      job_(std::move(job)),
      world_ranks_(find_world_ranks(comm, ranks())),
      piece_bytes_(job_->options.piece_bytes),
      staged_piece_bytes_(choose_staged_piece(ranks() - 1, piece_bytes_)),
      uncaught_at_start_(std::uncaught_exceptions()),
      inputs_(ranks()) {
  FSDP_CHECK_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  for (const int world_rank : world_ranks_) nodes_.push_back(job_->nodes[static_cast<std::size_t>(world_rank)]);
  staging_ = allocate_host(2 * (ranks() - 1) * staged_piece_bytes_);
  for (Requests& set : requests_) {
    set.all.resize(2 * ranks());
    set.peers.resize(2 * ranks());
  }
}

MpiCommunicator::~MpiCommunicator() {
  int is_over = 0;  // a program that initialized MPI itself may have finalized it already
  MPI_Finalized(&is_over);
  if (is_over) return;
  if (!broken_ && std::uncaught_exceptions() == uncaught_at_start_) {
    MPI_Comm_free(&comm_);
  } else {
    // Until main() ends the job, messages may still arrive in this buffer. So it is never freed.
    new Buffer(std::move(staging_));
  }
}

std::string MpiCommunicator::description() const {
  const bool alone = std::all_of(nodes_.begin(), nodes_.end(), [&](int node) { return node == nodes_[0]; });
  return format("MPI, {}{}", plural(size(), "rank"),
                find_backend(job_->options.kind).between == Between::ranks || alone ? "" : ", shared memory within a node");
}

void MpiCommunicator::all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) {
  expect_ready(stream, Call::all_gather);
  const std::size_t bytes = shard_count * size_of(type);
  std::byte* mine = static_cast<std::byte*>(whole) + me() * bytes;
  if (shard != mine && bytes != 0) std::memcpy(mine, shard, bytes);
  gather_shares(static_cast<std::byte*>(whole), ranks() * shard_count, size_of(type), Awaited::arrival);
  count(Collective::all_gather, std::exchange(sent_, 0));
}

void MpiCommunicator::reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                                     DType reduce_dtype) {
  expect_ready(stream, Call::reduce_scatter);
  with_element(reduce_dtype, [&]<class In>() { reduce_shares<In>(whole, ranks() * shard_count, shard, into); });
  count(Collective::reduce_scatter, std::exchange(sent_, 0));
}

void MpiCommunicator::all_reduce(Stream& stream, float* data, std::size_t n, DType reduce_dtype) {
  with_element(reduce_dtype, [&]<class In>() { sum_everywhere<float, In>(stream, data, n); });
}
void MpiCommunicator::all_reduce(Stream& stream, double* data, std::size_t n) { sum_everywhere(stream, data, n); }
void MpiCommunicator::all_reduce(Stream& stream, std::int64_t* data, std::size_t n) {
  sum_everywhere(stream, reinterpret_cast<std::uint64_t*>(data), n);
}

void MpiCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  begin(Call::broadcast);
  expect(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
  const int place = relative_to(root), children = tree_children(place, size());
  const auto rank_at = [&](int relative) { return (relative + root) % size(); };
  const std::size_t length = std::min(piece_bytes_, broadcast_piece);
  // The data is sent in pieces, so that a rank forwards one piece while it receives the next.
  for (std::size_t piece = 0; piece < pieces_in(bytes, length); ++piece) {
    const Range part = piece_of({0, bytes}, piece, length);
    std::byte* begin = static_cast<std::byte*>(data) + part.begin;
    if (place != 0) {
      receive(begin, part.size(), rank_at(tree_parent(place)), requests_[1]);
      wait(requests_[1], tree_parent(place) == 0 ? Awaited::arrival : Awaited::passing_on);
    }
    for (int k = children - 1; k >= 0; --k) send(begin, part.size(), rank_at(place + (1 << k)), requests_[0]);
    wait(requests_[0], piece == 0 ? Awaited::arrival : Awaited::passing_on);
  }
  count(Collective::broadcast, std::exchange(sent_, 0));
}

void MpiCommunicator::barrier() {
  begin(Call::barrier);
  for (std::size_t step = 1; step < ranks(); ++step) {
    receive(nullptr, 0, static_cast<int>((me() + ranks() - step) % ranks()), requests_[0]);
    send(nullptr, 0, static_cast<int>((me() + step) % ranks()), requests_[0]);
  }
  wait(requests_[0]);
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) { return connect(split_messages(color, key)); }

// MPI_Comm_split waits without a time limit.
std::unique_ptr<MessageGroup> MpiCommunicator::split_messages(int color, int key) {
  begin(Call::split);
  MPI_Comm part = MPI_COMM_NULL;
  FSDP_CHECK_MPI(MPI_Comm_split(comm_, color, key, &part));
  return std::make_unique<MpiCommunicator>(part, job_);
}

std::unique_ptr<Communicator> MpiCommunicator::split_by_node() { return split(nodes_[me()], rank()); }

void MpiCommunicator::begin(const Called& called) {
  if (broken_) throw GroupAborted();
  called_ = called;
}

void MpiCommunicator::expect_ready(const Stream& stream, Call call) {
  begin({call, stream.subject});
  expect_usable(stream);
}

void MpiCommunicator::send(const void* data, std::size_t bytes, int to, Requests& requests) {
  MPI_Request& request = requests.next(to);
  FSDP_CHECK_MPI(MPI_Isend(data, narrow<int>(bytes), MPI_BYTE, to, 0, comm_, &request));
  ++requests.used;
  sent_ += bytes;
}

void MpiCommunicator::receive(void* data, std::size_t bytes, int from, Requests& requests) {
  MPI_Request& request = requests.next(from);
  FSDP_CHECK_MPI(MPI_Irecv(data, narrow<int>(bytes), MPI_BYTE, from, 0, comm_, &request));
  ++requests.used;
}

void MpiCommunicator::wait(Requests& requests, Awaited awaited) {
  const double timeout_s = job_->options.timeout_s;
  if (requests.used > 0 && !wait_all({requests.all.data(), requests.used}, timeout_s, broken_)) {
    std::vector<int> missing;  // empty if the last message arrived after the time limit
    for (std::size_t i = 0; i < requests.used; ++i) {
      int done = 0;
      FSDP_CHECK_MPI(MPI_Test(&requests.all[i], &done, MPI_STATUS_IGNORE));
      if (!done) missing.push_back(world_ranks_[static_cast<std::size_t>(requests.peers[i])]);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    std::vector<std::string> hosts;
    for (const int rank : missing) hosts.push_back(job_->hosts[static_cast<std::size_t>(rank)]);
    if (!missing.empty()) {
      if (broken_.exchange(true)) throw GroupAborted();
      const std::string who = name_ranks(missing, hosts);
      if (awaited == Awaited::arrival) throw not_arrived(who, missing, name_of(called_), timeout_s);
      let_others_report_first(timeout_s);
      throw not_passed_on(who, missing, name_of(called_), timeout_s);
    }
  }
  requests.used = 0;
}

// Returns the address, in set `set` of the staging buffer, of the piece that `rank` sends.
std::byte* MpiCommunicator::staged_piece(std::size_t set, std::size_t rank) {
  const std::size_t place = rank < me() ? rank : rank - 1;
  return staging_.data() + (set * (ranks() - 1) + place) * staged_piece_bytes_;
}

// For each other rank: sends piece number `piece` of the share of that rank, and receives the same piece of this rank's share
// from it. Sender and receiver skip the same empty pieces.
template <class In, class T>
void MpiCommunicator::post_piece(const T* data, std::size_t total, std::size_t piece, std::size_t set) {
  const std::size_t length = staged_piece_bytes_ / sizeof(In);
  const Range mine = piece_of(share_of(total, me()), piece, length);
  for (std::size_t step = 1; step < ranks(); ++step) {
    const std::size_t from = (me() + ranks() - step) % ranks(), to = (me() + step) % ranks();
    if (!mine.empty()) receive(staged_piece(set, from), mine.size() * sizeof(In), static_cast<int>(from), requests_[set]);
    const Range share = share_of(total, to), theirs = piece_of(share, piece, length);
    const In* const begin = packed<In>(data + share.begin, share.size()) + (theirs.begin - share.begin);
    if (!theirs.empty()) send(begin, theirs.size() * sizeof(In), static_cast<int>(to), requests_[set]);
  }
}

// Computes the canonical sum over ranks of this rank's share of `data`, and overwrites `result` with this sum or adds it to
// `result`. `result` may be that share itself.
template <class In, class T>
void MpiCommunicator::reduce_shares(T* data, std::size_t total, T* result, Into into) {
  pack_shares<In>(data, total, ranks());
  const std::size_t length = staged_piece_bytes_ / sizeof(In);
  const Range mine = share_of(total, me());
  const In* const own = packed<In>(data + mine.begin, mine.size());
  const std::size_t pieces = pieces_in(share_of(total, 0).size(), length);
  if (pieces > 0) post_piece<In>(data, total, 0, 0);
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t set = piece % 2;
    if (piece + 1 < pieces) post_piece<In>(data, total, piece + 1, 1 - set);
    wait(requests_[set]);
    const Range part = piece_of(mine, piece, length);
    if (part.empty()) continue;
    for (std::size_t r = 0; r < ranks(); ++r)
      inputs_[r] = r == me() ? static_cast<const void*>(own + (part.begin - mine.begin)) : staged_piece(set, r);
    tree_sum<T, In>(inputs_, part.size(), result + (part.begin - mine.begin), into);
  }
}

// Sends this rank's share of `data` to all other ranks, and receives each other share from the rank that owns it.
void MpiCommunicator::gather_shares(std::byte* data, std::size_t total, std::size_t element_bytes, Awaited awaited) {
  const auto bytes_of = [&](std::size_t rank) {
    const Range range = share_of(total, rank);
    return Range{range.begin * element_bytes, range.end * element_bytes};
  };
  for (std::size_t piece = 0; piece < pieces_in(bytes_of(0).size(), piece_bytes_); ++piece) {
    const Range mine = piece_of(bytes_of(me()), piece, piece_bytes_);
    for (std::size_t step = 1; step < ranks(); ++step) {
      const std::size_t from = (me() + ranks() - step) % ranks(), to = (me() + step) % ranks();
      const Range theirs = piece_of(bytes_of(from), piece, piece_bytes_);
      if (!theirs.empty()) receive(data + theirs.begin, theirs.size(), static_cast<int>(from), requests_[0]);
      if (!mine.empty()) send(data + mine.begin, mine.size(), static_cast<int>(to), requests_[0]);
    }
    wait(requests_[0], awaited);
  }
}

template <class T, class In>
void MpiCommunicator::sum_everywhere(Stream& stream, T* data, std::size_t n) {
  expect_ready(stream, Call::all_reduce);
  const std::size_t begin = share_of(n, me()).begin;
  reduce_shares<In>(data, n, data + begin, Into::overwrite);
  // The owner of a share has heard from all ranks, so a rank that receives it need not wait for the others.
  gather_shares(reinterpret_cast<std::byte*>(data), n, sizeof(T), Awaited::passing_on);
  count(Collective::all_reduce, std::exchange(sent_, 0));
}

}  // namespace fsdp
