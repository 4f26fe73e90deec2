// NCCL. A communicator is a board in shared memory at which its ranks meet: host threads to make and split it, and stream
// threads to run operations. All data go through the board.
#include "nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/element.hpp"
#include "double.hpp"

namespace fsdp::cuda_double {

namespace {

/// What NCCL 2.29 writes about its network on a node with one Ethernet interface (NVIDIA/nccl, pull request 2047).
constexpr const char* log_lines =
    "node1:201:201 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so\n"
    "node1:201:201 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
    "node1:201:201 [0] NCCL INFO NET/Socket : Using [0]eth0:172.17.16.2<0>\n"
    "node1:201:201 [0] NCCL INFO Initialized NET plugin Socket\n"
    "node1:201:201 [0] NCCL INFO Using network Socket\n";

constexpr std::size_t most_ranks = 16, piece_bytes = std::size_t{16} << 10;

/// How many operations a device had started with a communicator.
struct Before {
  std::uint64_t communicator;
  std::uint64_t operations;
};
constexpr std::size_t most_others = 8;

/// A rank's part in an operation.
struct Order {
  std::uint64_t number;                    // of this communicator's operations
  std::array<Before, most_others> others;  // the device's other communicators when the host started the operation
  std::array<char, 120> what;              // the same on all ranks
  std::array<std::uint64_t, most_ranks> sent_as, expected_as;  // of the sizes of the messages to and from each rank
  std::array<std::uint64_t, most_ranks> sends;                 // bytes to each rank
  std::array<std::uint64_t, most_ranks> expects;               // bytes from each rank
};

struct Id {
  std::uint64_t mark;
  pid_t pid;
  int file;
  ino_t inode;
  std::uint64_t serial;  // of all communicators; an inode's number is used again
};
static_assert(sizeof(Id) <= NCCL_UNIQUE_ID_BYTES);
constexpr std::uint64_t id_mark = 0x6e63636c2d6964;

struct Seat {
  std::atomic<std::uint64_t> hosts, streams;  // how often this rank's have arrived
  int ranks, device;
  std::array<char, 32> host;  // NCCL_HOSTID
  int color, key;             // of a split
  Id part;                    // of which this rank may be the first
  Order order;
};

struct Board {
  std::array<Seat, most_ranks> seats;
  /// The data from each rank to each other one, in two halves that are used alternately.
  std::byte pieces[2][most_ranks][most_ranks][piece_bytes];
};

Id make_board() {
  const int file = ::memfd_create("nccl-double", MFD_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::ftruncate(file, sizeof(Board)) != 0 || ::fstat(file, &status) != 0) die("shared memory could not be made");
  static std::atomic<std::uint64_t> made = 0;
  return {id_mark, ::getpid(), file, status.st_ino, (static_cast<std::uint64_t>(::getpid()) << 32) + ++made};
}

Board* open_board(const Id& id) {
  if (id.mark != id_mark) return nullptr;
  const std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  void* memory = MAP_FAILED;
  if (file >= 0 && ::fstat(file, &status) == 0 && status.st_ino == id.inode)
    memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) ::close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Board*>(memory);
}

/// Thrown by waits in an aborted communicator.
struct GivenUp {};

/// A rank's part of a communicator. Running operations keep it alive.
struct Member {
  ~Member() {
    return_memory(device, connected);
    if (board) ::munmap(board, sizeof(Board));
  }

  /// Returns true if operations must end.
  bool is_given_up() const { return given_up || has_failed; }

  /// Takes memory for connections to the other ranks, at the first operation.
  bool connect() {
    static const std::size_t of_connection = environment_number("FSDP_CUDA_DOUBLE_NCCL_MEMORY", std::size_t{1} << 20);
    if (connected > 0) return true;
    const std::size_t bytes = (ranks() - 1) * of_connection;
    if (!take_memory(device, bytes)) return false;
    connected = bytes;
    return true;
  }

  /// Returns once the hosts, or streams, of all ranks have arrived the same number of times.
  void meet(std::atomic<std::uint64_t> Seat::*who) {
    const std::uint64_t round = (board->seats[me()].*who).fetch_add(1) + 1;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t r = 0; r < ranks(); ++r)
      while ((board->seats[r].*who).load() < round) {
        if (is_given_up()) throw GivenUp();
        if (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2))
          std::this_thread::yield();
        else
          std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
  }
  std::size_t me() const { return static_cast<std::size_t>(rank); }
  std::size_t ranks() const { return static_cast<std::size_t>(size); }

  int rank = 0, size = 0, device = 0;
  int first_rank = 0;  // in the communicator that others were split from
  bool blocks = true;
  Board* board = nullptr;
  std::size_t connected = 0;  // bytes of memory
  std::atomic<bool> given_up = false;
  std::atomic<ncclResult_t> status = ncclInProgress;
  std::string error;                         // written before `status`
  std::uint64_t id = 0;                      // the serial number of the communicator
  std::uint64_t given = 0;                   // operations, by the host
  std::shared_ptr<CUstream_st> last_stream;  // of the last operation
  std::uint64_t last_number = 0;             // its number there
  std::atomic<std::uint64_t> done = 0;       // operations
  std::vector<std::function<void()>> late;   // what ncclCommGetAsyncError queues
  std::minstd_rand dice;
};

void fail(Member& member, ncclResult_t status, const std::string& error) {
  member.error = error;
  member.status = status;
}

int version_code() { return static_cast<int>(environment_number("FSDP_CUDA_DOUBLE_NCCL_VERSION", NCCL_VERSION_CODE)); }

/// Returns NCCL's message about two ranks of a host that share a device; empty if this version and its setting allow that.
std::string about_shared_device(std::size_t r, std::size_t s, int device) {
  if (version_code() < NCCL_VERSION(2, 30, 0))
    return "Duplicate GPU detected : rank " + std::to_string(r) + " and rank " + std::to_string(s) + " both on CUDA device " +
           std::to_string(device);
  if (environment_number("NCCL_MULTI_RANK_GPU_ENABLE", 0) != 0) return {};
  return "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.";
}

/// Joins the board.
void join(Member& member, const Id& id) {
  member.board = open_board(id);
  member.id = id.serial;
  if (!member.board) return fail(member, ncclSystemError, "the unique id is of no process that lives");
  Seat& seat = member.board->seats[member.me()];
  seat.ranks = member.size;
  seat.device = first_device() + member.device;
  const char* const host = std::getenv("NCCL_HOSTID");
  std::snprintf(seat.host.data(), seat.host.size(), "%s", host ? host : "");
  member.meet(&Seat::hosts);
  if (member.rank == 0 && id.pid == ::getpid()) ::close(id.file);
  for (std::size_t r = 0; r < member.ranks(); ++r) {
    if (member.board->seats[r].ranks != member.size) die("ranks join one communicator and say that it has different sizes");
    for (std::size_t s = 0; s < r; ++s) {
      const Seat &one = member.board->seats[s], &other = member.board->seats[r];
      if (one.device != other.device || one.host != other.host) continue;
      if (const std::string why = about_shared_device(r, s, one.device); !why.empty())
        return fail(member, ncclInvalidUsage, why);
    }
  }
  member.status = ncclSuccess;
}

/// The communicators of each device and rank, in the order in which they were made.
struct Living {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<std::weak_ptr<Member>>> of;
};
Living& living() {
  static Living& all = *new Living;
  return all;
}

/// What the rank has started on its device with its other communicators.
std::array<Before, most_others> others_of(const Member& member) {
  std::array<Before, most_others> found{};
  std::size_t count = 0;
  const std::lock_guard lock(living().mutex);
  for (const auto& weak : living().of[{member.device, member.first_rank}])
    if (const auto other = weak.lock(); other && other.get() != &member && other->id != 0) {
      if (count == most_others) die("a rank has too many communicators for the double");
      found[count++] = {other->id, other->given};
    }
  return found;
}

std::shared_ptr<Member> make_member(int rank, int size, int device, int first_rank, bool blocks) {
  const auto member = std::make_shared<Member>();
  member->rank = rank;
  member->size = size;
  member->device = device;
  member->first_rank = first_rank;
  member->blocks = blocks;
  member->dice.seed(static_cast<unsigned>(environment_number("FSDP_CUDA_DOUBLE_SEED", 0)) * 64 + static_cast<unsigned>(rank) +
                    1);
  const std::lock_guard lock(living().mutex);
  auto& others = living().of[{device, first_rank}];
  std::erase_if(others, [](const auto& other) { return other.expired(); });
  others.push_back(member);
  return member;
}

/// Runs `body` here, or on a separate thread if the communicator is non-blocking.
template <class Body>
ncclResult_t work(const std::shared_ptr<Member>& member, Body body) {
  const auto guarded = [member, body] {
    try {
      body();
    } catch (const GivenUp&) {
      fail(*member, ncclInternalError, "aborted");
    }
  };
  member->status = ncclInProgress;
  if (!member->blocks) {
    std::thread(guarded).detach();
    return ncclInProgress;
  }
  guarded();
  return member->status;
}

bool blocks(const ncclConfig_t* config) {
  if (config && (config->size != sizeof(ncclConfig_t) || config->magic != 0xcafebeef))
    die("an ncclConfig_t is not initialised");
  return !config || config->blocking != 0;
}

// --- Operations ---

enum class Kind { all_gather, reduce_scatter, all_reduce, broadcast, send, receive };
constexpr const char* kind_names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                      "ncclBroadcast", "ncclSend",          "ncclRecv"};

struct Call {
  Kind kind;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  int peer;  // or root
  std::shared_ptr<Member> member;
  std::shared_ptr<CUstream_st> stream;
};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

template <class F>
void with_type(ncclDataType_t type, const F& f) {
  switch (type) {
    case ncclUint8:
      return f(std::uint8_t{});
    case ncclUint64:
      return f(std::uint64_t{});
    case ncclFloat16:
      return f(f16{});
    case ncclBfloat16:
      return f(bf16{});
    case ncclFloat32:
      return f(float{});
    case ncclFloat64:
      return f(double{});
  }
}

/// The data of each rank for this one, in a round.
using Pieces = std::array<const std::byte*, most_ranks>;

/// to[i] = the sum along a ring that ends at rank `end`.
template <class T>
void sum_along_ring(T* to, const Pieces& pieces, std::size_t i, std::size_t ranks, std::size_t end) {
  const auto of = [&](std::size_t rank) {
    T value;
    std::memcpy(&value, pieces[rank % ranks] + i * sizeof(T), sizeof(T));
    return value;
  };
  T sum = of(end + 1);
  for (std::size_t step = 2; step <= ranks; ++step) sum = T(sum + of(end + step));
  std::memcpy(to + i, &sum, sizeof(T));
}

/// An operation: one collective, or a group of sends and receives.
class Exchange {
 public:
  Exchange(std::vector<Call> calls, std::uint64_t number, const std::array<Before, most_others>& others)
      : calls_(std::move(calls)), member_(*calls_[0].member) {
    order_.number = number;
    order_.others = others;
    const Call& call = calls_[0];
    const std::size_t bytes = call.count * bytes_of(call.type);
    if (is_group()) {
      std::snprintf(order_.what.data(), order_.what.size(), "a group of sends and receives");
    } else {
      std::snprintf(order_.what.data(), order_.what.size(), "%s of %zu numbers of type %d%s",
                    kind_names[static_cast<std::size_t>(call.kind)], call.count, static_cast<int>(call.type),
                    call.kind == Kind::broadcast ? (" from rank " + std::to_string(call.peer)).c_str() : "");
    }
    const auto* const from = static_cast<const std::byte*>(call.from);
    for (std::size_t r = 0; r < member_.ranks(); ++r) {
      if (call.kind == Kind::all_gather || call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter)
        send(r, from + (call.kind == Kind::reduce_scatter ? r * bytes : 0), bytes), expect(r, bytes);
      if (call.kind == Kind::broadcast && call.peer == member_.rank) send(r, from, bytes);
      if (call.kind == Kind::broadcast && call.peer == static_cast<int>(r)) expect(r, bytes);
    }
    if (!is_group()) return;
    for (const Call& one : calls_) {
      const auto peer = static_cast<std::size_t>(one.peer);
      const std::size_t size = one.count * bytes_of(one.type);
      const bool sends = one.kind == Kind::send;
      auto& sizes = sends ? order_.sent_as[peer] : order_.expected_as[peer];
      sizes = sizes * 1000003 + size + 1;
      if (sends)
        send(peer, static_cast<const std::byte*>(one.from), size);
      else
        to_[peer].push_back({static_cast<std::byte*>(one.to), size}), order_.expects[peer] += size;
    }
  }

  void run() {
    while (member_.done.load() != order_.number - 1) {  // another stream has the one before
      if (member_.is_given_up()) throw GivenUp();
      std::this_thread::yield();
    }
    static const std::uint64_t failing = environment_number("FSDP_CUDA_DOUBLE_NCCL_ERROR", 0);
    if (order_.number == failing) {
      fail(member_, ncclRemoteError, "a peer has closed its connection (made for a test)");
      while (!member_.is_given_up()) std::this_thread::sleep_for(std::chrono::microseconds(100));
      throw GivenUp();
    }
    Board& board = *member_.board;
    board.seats[member_.me()].order = order_;
    member_.meet(&Seat::streams);
    compare();
    std::uint64_t most = 0;
    for (std::size_t r = 0; r < member_.ranks(); ++r)
      for (const std::uint64_t bytes : board.seats[r].order.sends) most = std::max(most, bytes);
    for (std::uint64_t begin = 0, half = 0; begin < most; begin += piece_bytes, half = 1 - half) {
      Pieces pieces{};
      for (std::size_t r = 0; r < member_.ranks(); ++r) {
        if (const std::size_t bytes = piece(order_.sends[r], begin); bytes > 0)
          each_part(from_[r], begin, bytes, [&](const std::byte* part, std::size_t at, std::size_t n) {
            std::memcpy(board.pieces[half][member_.me()][r] + at, part, n);
          });
        pieces[r] = board.pieces[half][r][member_.me()];
      }
      member_.meet(&Seat::streams);
      take(begin, pieces);
    }
    member_.meet(&Seat::streams);
    member_.done = order_.number;
  }

 private:
  bool is_group() const { return calls_[0].kind == Kind::send || calls_[0].kind == Kind::receive; }
  void send(std::size_t rank, const std::byte* from, std::size_t bytes) {
    from_[rank].push_back({from, bytes});
    order_.sends[rank] += bytes;
  }
  void expect(std::size_t rank, std::size_t bytes) { order_.expects[rank] = bytes; }
  template <class Byte>
  using Parts = std::vector<std::pair<Byte*, std::size_t>>;
  /// Calls f(part, at, n) for the memory of bytes [begin, begin + bytes) of messages; `at` counts from `begin`.
  template <class Byte, class F>
  static void each_part(const Parts<Byte>& parts, std::size_t begin, std::size_t bytes, const F& f) {
    std::size_t first = 0;  // of the message
    for (const auto& [memory, size] : parts) {
      const std::size_t from = std::max(first, begin), to = std::min(first + size, begin + bytes);
      if (from < to) f(memory + (from - first), from - begin, to - from);
      first += size;
    }
  }
  static std::size_t piece(std::uint64_t bytes, std::uint64_t begin) {
    return begin < bytes ? std::min<std::size_t>(piece_bytes, bytes - begin) : 0;
  }

  static std::string describe(std::size_t rank, const Order& order) {
    return "rank " + std::to_string(rank) + " does " + order.what.data() + " as its operation " + std::to_string(order.number);
  }
  void compare() const {
    for (std::size_t r = 0; r < member_.ranks(); ++r) {
      const Order& theirs = member_.board->seats[r].order;
      if (theirs.number != order_.number || theirs.what != order_.what)
        die("ranks do different things: " + describe(member_.me(), order_) + ", and " + describe(r, theirs));
      for (const Before& mine : order_.others)
        for (const Before& other : theirs.others)
          if (mine.communicator != 0 && mine.communicator == other.communicator && mine.operations != other.operations)
            die("ranks use two communicators in different orders: before " + describe(member_.me(), order_) + ", it does " +
                std::to_string(mine.operations) + " operations with the other communicator, and rank " + std::to_string(r) +
                " does " + std::to_string(other.operations));
      if (theirs.sends[member_.me()] != order_.expects[r] || theirs.sent_as[member_.me()] != order_.expected_as[r])
        die("rank " + std::to_string(r) + " sends " + std::to_string(theirs.sends[member_.me()]) + " bytes to rank " +
            std::to_string(member_.rank) + ", which expects " + std::to_string(order_.expects[r]) +
            ", or in messages of other sizes");
    }
  }

  void take(std::uint64_t begin, const Pieces& pieces) const {
    const Call& call = calls_[0];
    const std::size_t ranks = member_.ranks(), bytes = call.count * bytes_of(call.type);
    auto* const to = static_cast<std::byte*>(call.to);
    if (call.kind == Kind::reduce_scatter || call.kind == Kind::all_reduce) {
      with_type(call.type, [&](auto zero) {
        using T = decltype(zero);
        const std::size_t first = begin / sizeof(T), part = (call.count + ranks - 1) / ranks;
        for (std::size_t i = 0; i < piece(bytes, begin) / sizeof(T); ++i)
          sum_along_ring(reinterpret_cast<T*>(to + begin), pieces, i, ranks,
                         call.kind == Kind::all_reduce ? (first + i) / part : member_.me());
      });
      return;
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t part = piece(order_.expects[r], begin);
      if (is_group())
        each_part(to_[r], begin, part,
                  [&](std::byte* target, std::size_t at, std::size_t n) { std::memcpy(target, pieces[r] + at, n); });
      else if (part > 0)
        std::memcpy((call.kind == Kind::all_gather ? to + r * bytes : to) + begin, pieces[r], part);
    }
  }

  std::vector<Call> calls_;
  Member& member_;
  Order order_{};
  std::array<Parts<const std::byte>, most_ranks> from_;
  std::array<Parts<std::byte>, most_ranks> to_;
};

void queue_now(const std::vector<Call>& calls, std::uint64_t number, const std::array<Before, most_others>& others) {
  Member& member = *calls[0].member;
  member.last_stream = calls[0].stream;
  member.last_number = give(calls[0].stream, [calls, number, others](std::minstd_rand&) {
    try {
      Exchange(calls, number, others).run();
    } catch (const GivenUp&) {  // the stream continues with useless data
    }
  });
}

/// Queues calls of one communicator as one operation.
ncclResult_t queue(const std::vector<Call>& calls) {
  Member& member = *calls[0].member;
  const auto others = others_of(member);
  const std::uint64_t number = ++member.given;
  if (!member.blocks && (!member.late.empty() || member.dice() % 4 == 0)) {
    member.late.push_back([calls, number, others] { queue_now(calls, number, others); });
    member.status = ncclInProgress;
    return ncclInProgress;
  }
  queue_now(calls, number, others);
  return ncclSuccess;
}

/// Ending a communicator waits for its last operation, which may wait for one of another communicator.
void wait_for_last(const Member& member) {
  if (member.last_stream) wait(*member.last_stream, member.last_number);
}

/// Aborts act together: those of a group at its end.
void abort_now(const std::vector<std::shared_ptr<Member>>& members) {
  for (const auto& member : members) member->given_up = true;
  for (const auto& member : members) wait_for_last(*member);
}

constinit thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local std::vector<std::shared_ptr<Member>> aborted;  // in the group

ncclResult_t end_group() {
  const std::vector<Call> calls = std::move(group);
  group.clear();
  ncclResult_t result = ncclSuccess;
  std::vector<std::vector<Call>> of_members;
  for (const Call& call : calls) {
    const auto same =
        std::find_if(of_members.begin(), of_members.end(), [&](const auto& others) { return others[0].member == call.member; });
    if (same == of_members.end())
      of_members.push_back({call});
    else
      same->push_back(call);
  }
  for (const std::vector<Call>& of_member : of_members) {
    const auto messages = static_cast<std::size_t>(
        std::count_if(of_member.begin(), of_member.end(), [](const Call& call) { return call.kind >= Kind::send; }));
    if (messages != 0 && messages != of_member.size()) die("a group has collectives and messages, and the double takes either");
    if (messages != 0) {
      result = std::max(result, queue(of_member));
      continue;
    }
    for (const Call& call : of_member) result = std::max(result, queue({call}));
  }
  return result;
}

}  // namespace
}  // namespace fsdp::cuda_double

using namespace fsdp::cuda_double;

struct ncclComm {
  std::shared_ptr<Member> member;
};

namespace {

/// The communicators with which memory is registered.
std::multimap<const void*, const Member*>& registered() {
  static auto& all = *new std::multimap<const void*, const Member*>;
  return all;
}
std::mutex registered_mutex;

void forget_registrations(const Member& member) {
  const std::lock_guard lock(registered_mutex);
  std::erase_if(registered(), [&](const auto& entry) { return entry.second == &member; });
}

/// Takes an ended communicator out of living().
void forget(const std::shared_ptr<Member>& member) {
  const std::lock_guard lock(living().mutex);
  std::erase_if(living().of[{member->device, member->first_rank}], [&](const auto& other) { return other.lock() == member; });
}

void require_sum(ncclRedOp_t op) {
  if (op != ncclSum) die("a reduction has another operator than the sum");
}
const std::string no_error;

ncclResult_t add(Kind kind, const void* from, void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                 cudaStream_t handle) {
  if (!comm || bytes_of(type) == 0) return ncclInvalidArgument;
  const std::shared_ptr<Member>& member = comm->member;
  if (member->status == ncclInProgress)
    die(std::string(kind_names[static_cast<std::size_t>(kind)]) + " is called while the call before is in progress");
  if (member->status != ncclSuccess) return ncclInvalidUsage;
  if (has_failed) return ncclUnhandledCudaError;
  const std::shared_ptr<CUstream_st> stream = find_stream(handle);
  if (!stream || device_of(*stream) != member->device || peer < 0 || peer >= member->size) return ncclInvalidArgument;
  const std::size_t bytes = count * bytes_of(type), all = bytes * member->ranks();
  const auto check = [&](const void* memory, std::size_t size) {
    if (size > 0 && place_of(memory, size) != Place::device)
      die(std::string(kind_names[static_cast<std::size_t>(kind)]) + " is given memory that is not the device's");
  };
  if (kind != Kind::receive && (kind != Kind::broadcast || peer == member->rank))
    check(from, kind == Kind::reduce_scatter ? all : bytes);
  if (kind != Kind::send) check(to, kind == Kind::all_gather ? all : bytes);
  if (!member->connect()) {
    fail(*member, ncclUnhandledCudaError, "Failed to CUDA calloc memory for connections: out of memory");
    return ncclUnhandledCudaError;
  }
  group.push_back({kind, from, to, count, type, peer, member, stream});
  return group_depth == 0 ? end_group() : ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  // Tests can give ranks different versions.
  *version = version_code();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr std::array<const char*, 8> texts = {"no error",
                                                "unhandled cuda error",
                                                "unhandled system error",
                                                "internal error",
                                                "invalid argument",
                                                "invalid usage",
                                                "remote process exited or there was a network error",
                                                "NCCL operation in progress"};
  const auto index = static_cast<std::size_t>(result);
  return index < texts.size() ? texts[index] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) { return comm ? comm->member->error.c_str() : no_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (!id) return ncclInvalidArgument;
  const Id made = make_board();
  *id = {};
  std::memcpy(id->internal, &made, sizeof made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config) {
  if (!comm || nranks < 1 || rank < 0 || rank >= nranks || nranks > static_cast<int>(most_ranks)) return ncclInvalidArgument;
  if (const char* const file = std::getenv("NCCL_DEBUG_FILE")) std::ofstream(file) << log_lines;
  const std::shared_ptr<Member> member = make_member(rank, nranks, current_device(), rank, blocks(config));
  Id id;
  std::memcpy(&id, commId.internal, sizeof id);
  *comm = new ncclComm{member};
  return work(member, [member = member.get(), id] { join(*member, id); });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  if (!comm || !newcomm || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) return ncclInvalidArgument;
  const std::shared_ptr<Member>& parent = comm->member;
  if (parent->status != ncclSuccess) die("ncclCommSplit is called while the call before is in progress");
  *newcomm = nullptr;
  const int device = current_device();
  const bool part_blocks = config ? blocks(config) : parent->blocks;
  return work(parent, [parent = parent.get(), color, key, newcomm, device, part_blocks] {
    Seat& seat = parent->board->seats[parent->me()];
    seat.color = color;
    seat.key = key;
    seat.part = make_board();
    parent->meet(&Seat::hosts);
    std::vector<int> members;
    for (int r = 0; r < parent->size; ++r)
      if (parent->board->seats[static_cast<std::size_t>(r)].color == color) members.push_back(r);
    const auto key_of = [&](int r) { return parent->board->seats[static_cast<std::size_t>(r)].key; };
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
    if (color != NCCL_SPLIT_NOCOLOR) {
      const int place = static_cast<int>(std::find(members.begin(), members.end(), parent->rank) - members.begin());
      const auto part = make_member(place, static_cast<int>(members.size()), device, parent->first_rank, part_blocks);
      join(*part, parent->board->seats[static_cast<std::size_t>(members[0])].part);
      *newcomm = new ncclComm{part};
      if (place != 0) ::close(seat.part.file);
    } else {
      ::close(seat.part.file);
    }
    parent->meet(&Seat::hosts);
    parent->status = ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  if (has_failed) return ncclUnhandledCudaError;
  const std::shared_ptr<Member>& member = comm->member;
  if (member->status == ncclInProgress) die("ncclCommFinalize is called while the call before is in progress");
  return work(member, [member = member.get()] {
    wait_for_last(*member);
    member->meet(&Seat::hosts);
    member->status = ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (comm->member->status == ncclInProgress) die("ncclCommDestroy is called while the call before is in progress");
  wait_for_last(*comm->member);
  forget(comm->member);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  const std::shared_ptr<Member> member = std::move(comm->member);
  delete comm;
  forget_registrations(*member);
  forget(member);
  if (group_depth > 0)
    aborted.push_back(member);
  else
    abort_now({member});
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  if (!comm || !asyncError) return ncclInvalidArgument;
  Member& member = *comm->member;
  if (!member.late.empty() && member.dice() % 2 == 0) {
    for (const auto& operation : member.late) operation();
    member.late.clear();
    member.status = ncclSuccess;
  }
  *asyncError = member.status;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  abort_now(std::exchange(aborted, {}));
  return end_group();
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, std::size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(Kind::all_gather, sendbuff, recvbuff, sendcount, datatype, 0, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, std::size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  require_sum(op);
  return add(Kind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, 0, comm, stream);
}
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  require_sum(op);
  return add(Kind::all_reduce, sendbuff, recvbuff, count, datatype, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(Kind::broadcast, sendbuff, recvbuff, count, datatype, root, comm, stream);
}
ncclResult_t ncclSend(const void* sendbuff, std::size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(Kind::send, sendbuff, nullptr, count, datatype, peer, comm, stream);
}
ncclResult_t ncclRecv(void* recvbuff, std::size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(Kind::receive, nullptr, recvbuff, count, datatype, peer, comm, stream);
}

ncclResult_t ncclMemAlloc(void** ptr, std::size_t size) {
  return cudaMalloc(ptr, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* ptr) {
  {
    const std::lock_guard lock(registered_mutex);
    if (registered().contains(ptr)) die("memory is freed that is still registered with a communicator");
  }
  return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, std::size_t size, void** handle) {
  if (!comm || !handle || place_of(buff, size) != Place::device) return ncclInvalidArgument;
  const std::lock_guard lock(registered_mutex);
  registered().emplace(buff, comm->member.get());
  *handle = buff;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  if (!comm) return ncclInvalidArgument;
  const std::lock_guard lock(registered_mutex);
  const auto [first, last] = registered().equal_range(handle);
  const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second == comm->member.get(); });
  if (found == last) die("memory is deregistered that is not registered");
  registered().erase(found);
  return ncclSuccess;
}
