// Collectives of GPUs by NCCL. Reductions of fp32 have one of two orders of sums (SumOrder):
//
// `canonical`: the same bits as every other backend. Each rank sends its contributions to the ranks that own the shares, by
// NCCL's point-to-point messages, and a kernel adds them up in canonical order, piece by piece, through a staging buffer. If a
// group has the same power of two of ranks on each of several nodes, the sums within nodes are computed first, then those
// between nodes. The ranks of a node are a subtree of the canonical order, so that the bits are the same, and a rank sends as
// few bytes to other nodes as in a ring.
//
// `library`: NCCL's own reductions, of fp32 numbers that were first rounded to `reduce_dtype`. Their order depends on
// the algorithm that NCCL chooses, and so on its version, the number of ranks, their connections and the number of elements.
//
// With either order, sums of integers use NCCL's all-reduce, because they are exact in any order; sums of doubles are always
// canonical.
//
// NCCL's communicators are non-blocking: ncclCommGetAsyncError reports when a call is complete. While the host waits for a
// stream, it checks the collectives in progress (Groups::look). If one exceeds the time limit, or NCCL reports an error, all
// communicators are aborted, and the hosts exchange messages to find out which rank is missing.
#include "comm/nccl/nccl.hpp"

#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/call.hpp"
#include "comm/nccl/nccl_log.hpp"
#include "comm/topology.hpp"
#include "device/cuda/cuda_device.hpp"
#include "kernels/kernels.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

/// Returns NCCL's text for an error, and what its last error adds to it. `comm` may be null.
std::string describe(ncclResult_t status, ncclComm_t comm) {
  const char* const more = ncclGetLastError(comm);
  return format("{}{}{}", ncclGetErrorString(status), more && *more ? ": " : "", more ? more : "");
}

void check_nccl(ncclResult_t status, std::string_view call, ncclComm_t comm = nullptr,
                std::source_location where = std::source_location::current()) {
  if (status != ncclSuccess && status != ncclInProgress) throw CallError(call, describe(status, comm), where);
}

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

int version_code() {
  int code = 0;
  check_nccl(ncclGetVersion(&code), "ncclGetVersion");
  return code;
}
std::string version() {
  const int code = version_code();
  return format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

/// NCCL 2.22 can abort several communicators in one group, which abort_all() needs.
void require_group_aborts() {
  if (version_code() < 22200)
    throw UserError(
        format("NCCL {} is too old (2.22 or newer is needed, to end all collectives of a rank after an error); load "
               "a newer one, or give `communication by messages`",
               version()));
}

/// Tests set FSDP_NCCL_SHARED_GPU to run several ranks on a GPU. Before 2.30, NCCL does so only if it takes the ranks for ranks
/// of different nodes. Newer versions refuse the ranks, with a message, if NCCL_MULTI_RANK_GPU_ENABLE is missing.
void require_shared_gpus() {
  if (std::getenv("FSDP_NCCL_SHARED_GPU") && !std::getenv("NCCL_HOSTID") && version_code() < 23000)
    throw UserError(format(
        "NCCL {} is too old to run several ranks on one GPU, which FSDP_NCCL_SHARED_GPU asks for (2.30 or newer is needed, "
        "with NCCL_MULTI_RANK_GPU_ENABLE=1); load a newer one, or set NCCL_HOSTID to another name for each rank",
        version()));
}

// --- Memory ---

/// The communicators with which a block of ncclMemAlloc() memory is registered, and NCCL's handle of each registration.
struct Registered {
  std::vector<std::pair<ncclComm_t, void*>> with;
  void end() {
    for (const auto& [comm, handle] : with) ncclCommDeregister(comm, handle);
    with.clear();
  }
};

/// The registrations of each buffer. The release function of a buffer, which is a plain function, finds them here. The mutex is
/// needed because ranks may be threads.
struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, std::shared_ptr<Registered>> buffers;
};
Registry& registry() {
  static Registry all;
  return all;
}

void release(std::byte* data, std::size_t) {
  std::shared_ptr<Registered> registered;
  {
    const std::lock_guard lock(registry().mutex);
    registered = std::move(registry().buffers.extract(data).mapped());
  }
  registered->end();
  ncclMemFree(data);
}

// --- Groups ---

/// A collective that was given to a stream.
struct Started {
  Called called = Call::all_reduce;
  std::uint64_t number = 0;  // the sequence number of the collective; all ranks issue the same sequence
  double seen_s = -1;        // when the host first saw the collective running; negative: not yet
  cudaEvent_t begin = nullptr, end = nullptr;
};

class Groups final : public DeviceGroups {
 public:
  Groups(Communicator& world, Device& device, const DeviceCommOptions& options)
      : options_(options), device_(device), rank_(world.rank()), size_(world.size()), hosts_(world.split(0, world.rank())) {
    const auto node = world.split_by_node();
    std::optional<NcclLog> log;  // of one process, because all of them use the same network
    if (rank_ == 0 && node->size() < size_) log.emplace();
    world.barrier();  // ranks that are threads of this process read no environment variables before they are set
    ncclUniqueId id{};
    agree(world, [&] {
      require_group_aborts();
      require_shared_gpus();
      if (rank_ == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    world.broadcast(&id, sizeof id, 0);
    agree(world, [&] {
      ncclConfig_t config = non_blocking();
      const ncclResult_t status = ncclCommInitRankConfig(&world_, size_, id, rank_, &config);
      wait_until_made(status, world_, "ncclCommInitRankConfig");
    });
    network = world.broadcast(log ? describe(network_in(log->text())) : "", 0);
    look_while_waiting(device, [this] { look(); });
  }

  ~Groups() override {
    look_while_waiting(device_, {});
    end(world_);
    for (std::list<Started>* const list : {&open_, &spare_})
      for (const Started& started : *list) {
        cudaEventDestroy(started.begin);
        cudaEventDestroy(started.end);
      }
  }

  std::unique_ptr<Collectives> make(Communicator& group, std::size_t staging_bytes) override;

  /// Returns memory of `bytes`, registered with all existing communicators.
  Buffer allocate(std::size_t bytes) {
    void* data = nullptr;
    if (bytes == 0 || ncclMemAlloc(&data, bytes) != ncclSuccess) {
      cudaGetLastError();
      return device_.allocate(bytes);  // plain memory, which also works; if it fails, it throws the message
    }
    const auto registered = std::make_shared<Registered>();
    auto* const begin = static_cast<std::byte*>(data);
    {
      const std::lock_guard lock(registry().mutex);
      registry().buffers.emplace(begin, registered);
    }
    Buffer buffer(begin, bytes, release);
    for (ncclComm_t comm : parts_) {
      void* handle = nullptr;
      check_nccl(ncclCommRegister(comm, data, bytes, &handle), "ncclCommRegister", comm);
      if (handle) registered->with.emplace_back(comm, handle);
    }
    registered_.push_back(registered);
    check_cuda(cudaMemset(data, 0, bytes), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // because other streams do not wait for cudaMemset
    return buffer;
  }

  /// Destroys a communicator and sets `comm` to null. Without an error, all ranks finalize the communicator together; after an
  /// error, this rank aborts all its communicators.
  void end(ncclComm_t& comm) {
    if (!comm) return;
    if (failed_) return static_cast<void>(comm = nullptr);  // abort_all() has ended it
    try {
      if (std::uncaught_exceptions() == 0) {
        end_registrations();
        wait_until_made(ncclCommFinalize(comm), comm, "ncclCommFinalize");
        ncclCommDestroy(comm);
        std::erase(parts_, comm);
        comm = nullptr;
        return;
      }
    } catch (const std::exception&) {
      // aborted below
    }
    abort_all();
    comm = nullptr;
  }

  /// Runs one collective of a group: `body` queues the work of the collective on `stream`.
  template <class Body>
  void run(Stream& stream, Call call, const Body& body) {
    if (failed_) throw GroupAborted();
    close_done();
    if (spare_.empty()) {
      Started& made = spare_.emplace_back();
      for (cudaEvent_t* event : {&made.begin, &made.end})
        check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    open_.splice(open_.end(), spare_, spare_.begin());
    Started& started = open_.back();
    started = {{call, stream.subject}, ++begun_, -1, started.begin, started.end};
    CudaStream& on = cuda_stream(stream);
    check_cuda(cudaEventRecord(started.begin, on.next_call()), "cudaEventRecord");
    body();
    check_cuda(cudaEventRecord(started.end, on.next_call()), "cudaEventRecord");
  }

  /// Returns when a call of NCCL within a collective is complete. Throws the same errors as a wait for the whole collective.
  void finish(ncclResult_t status, ncclComm_t comm, std::string_view call) {
    if (status == ncclInProgress) {
      WaitTimer waited;
      while (status == ncclInProgress) {
        check_nccl(ncclCommGetAsyncError(comm, &status), "ncclCommGetAsyncError", comm);
        if (is_too_long(waited.seconds())) give_up(open_.back(), {});
        if (status == ncclInProgress) std::this_thread::yield();
      }
    }
    if (status != ncclSuccess) give_up(open_.back(), format("{} reports: {}", call, describe(status, comm)));
  }

  Device& device() const { return device_; }
  const DeviceCommOptions& options() const { return options_; }

 private:
  bool is_too_long(double seconds) const { return options_.timeout_s > 0 && seconds > options_.timeout_s; }

  /// Waits until a communicator has been made, split or finalized.
  void wait_until_made(ncclResult_t status, ncclComm_t comm, std::string_view call) const {
    check_nccl(status, call, comm);
    WaitTimer waited;
    while (status == ncclInProgress) {
      check_nccl(ncclCommGetAsyncError(comm, &status), "ncclCommGetAsyncError", comm);
      check_nccl(status, call, comm);
      constexpr double sooner = 1.1;  // than the ranks that failed at once, which wait for this one in agree()
      if (is_too_long(sooner * waited.seconds()))
        throw RunError(
            format("NCCL has not connected the ranks within {} (during {}, a rank is missing, or the network does not work as "
                   "NCCL expects); run with NCCL_DEBUG=INFO to see why, or raise `longest wait`",
                   format_duration(options_.timeout_s), call));
      std::this_thread::yield();
    }
  }

  void end_registrations() {
    for (const auto& weak : registered_)
      if (const auto registered = weak.lock()) registered->end();
    registered_.clear();
  }

  void close_done() {
    while (!open_.empty() && cudaEventQuery(open_.front().end) == cudaSuccess)
      spare_.splice(spare_.end(), open_, open_.begin());
    cudaGetLastError();  // clears cudaErrorNotReady, which is no error here
  }

  /// Aborts all communicators in one group: an abort waits for the communicator's last operation, which may wait for one of a
  /// communicator that is not aborted yet. The memory stays registered, because ending a registration needs the other ranks.
  void abort_all() {
    failed_ = true;
    for (const auto& weak : registered_)
      if (const auto registered = weak.lock()) registered->with.clear();
    registered_.clear();
    ncclGroupStart();
    for (ncclComm_t comm : parts_) ncclCommAbort(comm);
    if (world_) ncclCommAbort(world_);
    ncclGroupEnd();
    parts_.clear();
    world_ = nullptr;
  }

  /// Called by a host that waits for a stream: checks the collectives in progress.
  void look() {
    constexpr double between_looks_s = 1e-3;
    if (failed_ || clock_.seconds() < next_look_s_) return;
    next_look_s_ = clock_.seconds() + between_looks_s;
    close_done();
    for (Started& started : open_) {
      if (cudaEventQuery(started.begin) != cudaSuccess || cudaEventQuery(started.end) == cudaSuccess) continue;
      if (started.seen_s < 0) started.seen_s = clock_.seconds();
      if (is_too_long(clock_.seconds() - started.seen_s)) give_up(started, {});
      for (ncclComm_t comm : parts_) {
        ncclResult_t status = ncclSuccess;
        check_nccl(ncclCommGetAsyncError(comm, &status), "ncclCommGetAsyncError", comm);
        if (status != ncclSuccess && status != ncclInProgress)
          give_up(started, format("NCCL reports: {}", describe(status, comm)));
      }
    }
    cudaGetLastError();
  }

  /// Aborts all communicators of this rank, exchanges sequence numbers with the other hosts to find the rank that is furthest
  /// behind, and throws CollectiveTimeout. All ranks that wait for a missing rank call this at about the same time. `said` is
  /// an error that NCCL has reported, or empty if the collective takes too long.
  [[noreturn]] void give_up(const Started& missed, const std::string& said) {
    const std::string what = name_of(missed.called);
    abort_all();
    std::vector<std::int64_t> places(static_cast<std::size_t>(size_), 0);
    places[static_cast<std::size_t>(rank_)] = static_cast<std::int64_t>(missed.number);
    try {
      hosts_->sum(places);
    } catch (const CollectiveTimeout& absent) {
      throw not_arrived(absent.who, absent.ranks, what, options_.timeout_s);
    }
    const auto [least, most] = std::minmax_element(places.begin(), places.end());
    std::vector<int> last;
    for (int rank = 0; rank < size_ && *least < *most; ++rank)
      if (places[static_cast<std::size_t>(rank)] == *least) last.push_back(rank);
    const std::string who = name_ranks(last);
    const std::string failed = said.empty()
                                   ? format("NCCL has not completed {} within {}", what, format_duration(options_.timeout_s))
                                   : format("{}, in the {}", said, what);
    throw CollectiveTimeout(
        format("{} (all processes respond{}); run with NCCL_DEBUG=INFO to see why, or give `communication by messages`", failed,
               last.empty() ? "" : format(", and {} {} the furthest behind", who, last.size() == 1 ? "is" : "are")),
        last.empty() ? "another rank" : who, last, options_.timeout_s);
  }

  const DeviceCommOptions options_;
  Device& device_;
  const int rank_, size_;
  const std::unique_ptr<Communicator> hosts_;  // only used after an error
  ncclComm_t world_ = nullptr;
  std::vector<ncclComm_t> parts_;
  std::vector<std::weak_ptr<Registered>> registered_;
  std::list<Started> open_, spare_;  // open_: in progress, in the order of issue; spare_: to be reused
  std::uint64_t begun_ = 0;
  WaitTimer clock_;
  double next_look_s_ = 0;
  bool failed_ = false;
};

// --- Collectives ---

/// Ranks of a communicator at equal distances, between which sums are exchanged: those of this rank's node, or those in the
/// same place on every node.
struct Level {
  std::size_t size, me, first, step;
  std::size_t rank(std::size_t i) const { return first + i * step; }
};

class NcclCollectives final : public Collectives {
 public:
  /// Takes ownership of `comm`, which is null for a group of one. Of each `of_node` consecutive ranks, the sums are computed
  /// first: a whole subtree of the canonical order. Sums use `staging`.
  NcclCollectives(Groups& groups, Communicator& host, ncclComm_t comm, std::size_t of_node, Buffer staging)
      : groups_(groups),
        host_(host),
        comm_(comm),
        ranks_(static_cast<std::size_t>(host.size())),
        me_(static_cast<std::size_t>(host.rank())),
        node_{of_node, me_ % of_node, me_ - me_ % of_node, 1},
        across_{ranks_ / of_node, me_ / of_node, me_ % of_node, of_node},
        staging_(std::move(staging)) {}
  ~NcclCollectives() override { groups_.end(comm_); }

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override {
    const std::size_t bytes = shard_count * size_of(type);
    run(stream, Call::all_gather, [&] {
      if (comm_)
        finish(ncclAllGather(shard, whole, bytes, ncclUint8, comm_, handle(stream)), "ncclAllGather");
      else if (shard != whole)
        stream.copy(whole, shard, bytes);
    });
    traffic_.count(Collective::all_gather, (ranks_ - 1) * bytes);
  }

  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override {
    run(stream, Call::reduce_scatter, [&] {
      if (!comm_ || groups_.options().sum_order == SumOrder::library)
        reduce_by_library(stream, whole, shard, shard_count, into, reduce_dtype);
      else
        with_element(reduce_dtype,
                     [&]<class In>() { reduce_by_levels<In>(stream, whole, shard, shard_count, write_of(into)); });
    });
    traffic_.count(Collective::reduce_scatter, std::exchange(sent_, 0));
  }

  void all_reduce(Stream& stream, float* data, std::size_t n, DType reduce_dtype) override {
    run(stream, Call::all_reduce, [&] {
      if (!comm_ || groups_.options().sum_order == SumOrder::library) {
        kernels::round_to(stream, reduce_dtype, data, n);
        reduce_everywhere(stream, data, n, ncclFloat32);
        sent_ += sent_in_all_reduce(n, {ranks_, me_, 0, 1}, sizeof(float));
      } else {
        with_element(reduce_dtype, [&]<class In>() { sum_by_levels<In>(stream, data, n); });
      }
    });
    traffic_.count(Collective::all_reduce, std::exchange(sent_, 0));
  }
  void all_reduce(Stream& stream, double* data, std::size_t n) override {
    run(stream, Call::all_reduce, [&] {
      if (comm_) sum_by_levels<double>(stream, data, n);
    });
    traffic_.count(Collective::all_reduce, std::exchange(sent_, 0));
  }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t n) override {
    run(stream, Call::all_reduce, [&] { reduce_everywhere(stream, data, n, ncclUint64); });
    for (const Level& level : {node_, across_}) sent_ += sent_in_all_reduce(n, level, sizeof(std::int64_t));
    traffic_.count(Collective::all_reduce, std::exchange(sent_, 0));
  }

  Buffer allocate(Device& device, std::size_t bytes) override {
    expect(&device == &groups_.device(), "NCCL moves the memory of the device that it was made for");
    return agree(host_, [&] { return groups_.allocate(bytes); });
  }
  std::size_t staging_bytes() const override { return staging_.bytes(); }
  const Traffic& traffic() const override { return traffic_; }

 private:
  static cudaStream_t handle(Stream& stream) { return cuda_stream(stream).next_call(); }
  static kernels::Write write_of(Into into) { return into == Into::add ? kernels::Write::add : kernels::Write::overwrite; }

  template <class Body>
  void run(Stream& stream, Call call, const Body& body) {
    groups_.run(stream, call, body);
  }
  void finish(ncclResult_t status, std::string_view call) { groups_.finish(status, comm_, call); }

  /// With Into::overwrite, reduces into `shard`. With Into::add, reduces in place into this rank's share of `whole`, then adds
  /// that share to `shard`. Also used by a group of one rank.
  void reduce_by_library(Stream& stream, float* whole, float* shard, std::size_t n, Into into, DType reduce_dtype) {
    kernels::round_to(stream, reduce_dtype, whole, ranks_ * n);
    float* const mine = whole + me_ * n;
    float* const sum = into == Into::overwrite ? shard : mine;
    if (comm_)
      finish(ncclReduceScatter(whole, sum, n, ncclFloat32, ncclSum, comm_, handle(stream)), "ncclReduceScatter");
    else if (sum != mine)
      stream.copy(sum, mine, n * sizeof(float));
    sent_ += (ranks_ - 1) * n * sizeof(float);
    if (into == Into::add) kernels::sum_ranks<float, float>(stream, shard, mine, nullptr, 0, 1, 0, n, kernels::Write::add);
  }

  template <class T>
  void reduce_everywhere(Stream& stream, T* data, std::size_t n, ncclDataType_t type) {
    if (comm_) finish(ncclAllReduce(data, data, n, type, ncclSum, comm_, handle(stream)), "ncclAllReduce");
  }
  /// The bytes that this rank would send to the others of a level, if each of them reduced a share.
  static std::size_t sent_in_all_reduce(std::size_t n, const Level& level, std::size_t bytes) {
    const std::size_t mine = share(n, level.size, level.me).size();
    return (n - mine + (level.size - 1) * mine) * bytes;
  }

  /// Reduces within nodes, then between nodes. The sum within this node for a rank of node k replaces this rank's own
  /// contribution in block k of `whole`, which no other rank of this node reads.
  template <class In>
  void reduce_by_levels(Stream& stream, float* whole, float* shard, std::size_t n, kernels::Write write) {
    const std::size_t block = node_.size * n;
    const auto of_place = [&](std::size_t place) { return Range{place * n, (place + 1) * n}; };
    if (across_.size == 1) return sum_shares<In>(stream, node_, {whole, block, 1}, of_place, shard, write);
    sum_shares<In>(stream, node_, {whole, block, across_.size}, of_place, whole + node_.me * n, kernels::Write::overwrite);
    const auto of_node = [&](std::size_t node) { return Range{node * block, node * block + n}; };
    sum_shares<float>(stream, across_, {whole + node_.me * n, ranks_ * n, 1}, of_node, shard, write);
  }

  /// As NodesCommunicator does: equal parts are reduced within nodes, summed between nodes, and gathered within nodes.
  template <class In, class T>
  void sum_by_levels(Stream& stream, T* data, std::size_t n) {
    if (across_.size == 1) return sum_everywhere<In>(stream, node_, data, n);
    const std::size_t parted = elements_in_parts(n, sizeof(T), node_.size), part = parted / node_.size;
    T *const mine = data + node_.me * part, *const rest = data + parted;
    if (parted > 0) {
      reduce_parts<In>(stream, node_, data, parted);
      sum_everywhere<T>(stream, across_, mine, part);
      gather_parts(stream, node_, data, parted);
    }
    sum_everywhere<In>(stream, node_, rest, n - parted);
    sum_everywhere<T>(stream, across_, rest, n - parted);
  }
  template <class In, class T>
  void sum_everywhere(Stream& stream, const Level& level, T* data, std::size_t n) {
    reduce_parts<In>(stream, level, data, n);
    gather_parts(stream, level, data, n);
  }
  /// Replaces this rank's share of data[n] by its sum over the ranks of the level.
  template <class In, class T>
  void reduce_parts(Stream& stream, const Level& level, T* data, std::size_t n) {
    const auto share_of = [&](std::size_t i) { return share(n, level.size, i); };
    sum_shares<In>(stream, level, {data, n, 1}, share_of, data + share_of(level.me).begin, kernels::Write::overwrite);
  }
  /// Sends each rank's share of data[n] to all ranks of the level.
  template <class T>
  void gather_parts(Stream& stream, const Level& level, T* data, std::size_t n) {
    const Range mine = share(n, level.size, level.me);
    if (n == 0) return;
    exchange(stream, level, [&](cudaStream_t on, std::size_t i, std::size_t) {
      const Range theirs = share(n, level.size, i);
      send(on, data + mine.begin, mine.size() * sizeof(T), level.rank(i));
      receive(on, data + theirs.begin, theirs.size() * sizeof(T), level.rank(i));
    });
  }

  /// `count` rows of `length` numbers, one after another.
  template <class T>
  struct Rows {
    T* data;
    std::size_t length, count;
  };
  /// In each row, overwrites `result` with the canonical sum over the ranks of a level of this rank's share of the row, or adds
  /// that sum to it. share_of(i) is the share of the level's rank i, and the first share is the longest. Results of rows are
  /// as far apart as the rows, and may be that share of the row. Contributions are rounded to In; their rows are then divided
  /// as by share(). Works in pieces: of several rows, or of a part of one row, as many as the staging buffer can hold.
  template <class In, class T, class ShareOf>
  void sum_shares(Stream& stream, const Level& level, Rows<T> rows, const ShareOf& share_of, T* result, kernels::Write write) {
    constexpr bool rounds = !std::is_same_v<In, T>;
    const Range mine = share_of(level.me);
    const std::size_t others = level.size - 1, longest = share_of(0).size();
    const std::size_t room = staging_.bytes() / sizeof(In) / (others + (rounds ? level.size : 0));  // elements of each rank
    const std::size_t length = std::min(round_up(longest, 64), room / 64 * 64);
    const std::size_t at_once = longest == 0 ? 0 : std::min(rows.count, room / length);
    auto* const received = reinterpret_cast<In*>(staging_.data());
    auto* const rounded = received + at_once * others * length;
    for (std::size_t first = 0; longest > 0 && first < rows.count; first += at_once)
      for (std::size_t begin = 0; begin < longest; begin += length) {
        const std::size_t now = std::min(at_once, rows.count - first);
        const auto length_of = [&](Range range) { return range.size() > begin ? std::min(length, range.size() - begin) : 0; };
        const auto contribution = [&](std::size_t row, std::size_t i) -> const In* {
          if constexpr (rounds)
            return rounded + (row * level.size + i) * length;
          else
            return rows.data + (first + row) * rows.length + share_of(i).begin + begin;
        };
        if constexpr (rounds)
          for (std::size_t row = 0; row < now; ++row)
            kernels::round_shares(stream, rounded + row * level.size * length, rows.data + (first + row) * rows.length,
                                  rows.length, begin, std::min(length, longest - begin), length, static_cast<int>(level.size));
        exchange(stream, level, [&](cudaStream_t on, std::size_t i, std::size_t place) {
          for (std::size_t row = 0; row < now; ++row) {
            send(on, contribution(row, i), length_of(share_of(i)) * sizeof(In), level.rank(i));
            receive(on, received + (row * others + place) * length, length_of(mine) * sizeof(In), level.rank(i));
          }
        });
        for (std::size_t row = 0; length_of(mine) > 0 && row < now; ++row)
          kernels::sum_ranks<T, In>(stream, result + (first + row) * rows.length + begin, contribution(row, level.me),
                                    received + row * others * length, length, static_cast<int>(level.size),
                                    static_cast<int>(level.me), length_of(mine), write);
      }
  }

  /// Runs a group of messages, which is one call of the stream: calls with(on, i, place) for each other rank i of the level.
  /// `place` is the index of that rank among the other ranks.
  template <class With>
  void exchange(Stream& stream, const Level& level, const With& with) {
    cudaStream_t const on = handle(stream);
    check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
    try {
      for (std::size_t step = 1; step < level.size; ++step) {
        const std::size_t i = (level.me + step) % level.size;
        with(on, i, i < level.me ? i : i - 1);
      }
    } catch (...) {
      ncclGroupEnd();  // in an open group, abort_all() would do nothing
      throw;
    }
    finish(ncclGroupEnd(), "ncclGroupEnd");
  }
  void send(cudaStream_t on, const void* data, std::size_t bytes, std::size_t to) {
    if (bytes == 0) return;
    check_nccl(ncclSend(data, bytes, ncclUint8, static_cast<int>(to), comm_, on), "ncclSend", comm_);
    sent_ += bytes;
  }
  void receive(cudaStream_t on, void* data, std::size_t bytes, std::size_t from) {
    if (bytes == 0) return;
    check_nccl(ncclRecv(data, bytes, ncclUint8, static_cast<int>(from), comm_, on), "ncclRecv", comm_);
  }

  Groups& groups_;
  Communicator& host_;
  ncclComm_t comm_;
  const std::size_t ranks_, me_;
  const Level node_, across_;  // without several nodes, node_ has all ranks
  Buffer staging_;
  Traffic traffic_;
  std::size_t sent_ = 0;
};

/// The number of ranks whose sums are computed before those of other nodes: the ranks of a node, if that is possible and of
/// use, else all. Collective.
std::size_t ranks_of_a_level(Communicator& group) {
  std::int64_t node = group.rank();
  group.split_by_node()->broadcast(&node, sizeof node, 0);
  std::vector<int> nodes;
  for (const std::int64_t one : group.gather(std::span<const std::int64_t>(&node, 1))) nodes.push_back(static_cast<int>(one));
  const auto of_each = static_cast<std::size_t>(ranks_of_each_node(nodes));
  return of_each > 1 && is_subtree(of_each) ? of_each : nodes.size();
}

std::unique_ptr<Collectives> Groups::make(Communicator& group, std::size_t staging_bytes) {
  int color = rank_;
  group.broadcast(&color, sizeof color, 0);
  const std::size_t of_level = ranks_of_a_level(group);
  ncclComm_t comm = nullptr;
  // In a mesh all groups have the same size: either all call ncclCommSplit or, with groups of one rank, none does.
  std::unique_ptr<Collectives> made;
  agree(*hosts_, [&] {
    if (group.size() > 1) {
      ncclConfig_t config = non_blocking();
      wait_until_made(ncclCommSplit(world_, color, group.rank(), &comm, &config), world_, "ncclCommSplit");
      ncclResult_t status = ncclSuccess;
      check_nccl(ncclCommGetAsyncError(comm, &status), "ncclCommGetAsyncError", comm);
      wait_until_made(status, comm, "ncclCommSplit");
      parts_.push_back(comm);
    }
    made = std::make_unique<NcclCollectives>(*this, group, comm, of_level,
                                             comm && staging_bytes > 0 ? allocate(staging_bytes) : Buffer());
  });
  return made;
}

std::unique_ptr<DeviceGroups> connect_gpus(Communicator& world, Device& device, const DeviceCommOptions& options) {
  return std::make_unique<Groups>(world, device, options);
}

}  // namespace

}  // namespace fsdp

extern "C" [[gnu::visibility("default")]] const fsdp::DeviceLibrary* fsdp_nccl_library() {
  // Gathers and reductions are on two communicators and run at the same time. With this variable, NCCL 2.26 and newer start
  // their kernels in the order of the host's calls, so that two ranks cannot wait for each other ("Using multiple NCCL
  // communicators concurrently" in NCCL's user guide). NCCL reads it when it is first called, which is later.
  static const fsdp::DeviceLibrary library = [] {
    ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    return fsdp::DeviceLibrary{fsdp::version, fsdp::connect_gpus};
  }();
  return &library;
}
