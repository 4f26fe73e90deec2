// Two interfaces: Group exchanges values in host memory between the ranks of a group; Collectives are the collectives on device
// memory. The backends (implementations) are `mpi/` for processes, `shm/` for processes of one node, `nodes/` for processes of
// several nodes (it uses `shm/` within nodes and `mpi/` between them) and `threads/` for ranks that are threads of one process.
// `nccl/` implements only Collectives, for GPUs. Code outside this folder does not depend on the backend.
//
// Order of sums. Every reduction adds the contributions of the ranks in the "canonical" order, a binary tree that depends only
// on the number of ranks; seven ranks give ((0+1)+(2+3))+((4+5)+6). So all-reduce and reduce-scatter give the same bits,
// whatever the backend, chunk size and timing. The only exception is NCCL's own order, if the user selects it
// (SumOrder::library).
//
// Errors. A rank that throws in or between collectives must not leave the others waiting: it calls abort() and then ends. From
// then on, collectives throw GroupAborted, also collectives that are already waiting. With `threads/` and `shm/`, this applies
// to the collectives of all ranks; with `nodes/`, to those of all ranks of the same node; with `mpi/`, only to those of the
// rank that called abort(). main() prints the error and calls MpiSession::abort_job, which ends the other processes; after
// GroupAborted it first gives the rank that failed the time to do so. If a process does not arrive at a collective within
// CommOptions::timeout_s, the ranks that wait for that process throw CollectiveTimeout, which names it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"

namespace fsdp {

enum class Collective { all_gather, reduce_scatter, all_reduce, broadcast };
inline constexpr std::size_t collective_kinds = 4;

/// A reduction overwrites its destination with the canonical sum (`overwrite`), or adds that sum to it in one addition (`add`).
enum class Into { overwrite, add };

/// The order of sums in collectives of GPUs: the canonical one, or the one that the NCCL library chooses.
enum class SumOrder { canonical, library };

/// Thrown by a collective because another rank called abort(): never the cause of a failure, only its consequence.
struct GroupAborted : std::runtime_error {
  GroupAborted() : std::runtime_error("another rank failed, so that this collective cannot be done") {}
};

/// Thrown by a collective because some ranks did not arrive. The group cannot be used any more: all later collectives throw,
/// too.
struct CollectiveTimeout : RunError {
  CollectiveTimeout(const std::string& message, std::string who_is_missing, std::vector<int> ranks_of_who, double waited_s)
      : RunError(message), who(std::move(who_is_missing)), ranks(std::move(ranks_of_who)), timeout_s(waited_s) {}
  std::string who;         // "rank 3 on node7", "ranks 1 and 3 on node7"
  std::vector<int> ranks;  // the missing ranks, numbered as in the job; empty: unknown
  double timeout_s;
};

/// The calls and sent bytes of one rank since construction, by kind of collective. If ranks share memory, these are the bytes
/// that messages would have sent.
struct Traffic {
  std::array<std::uint64_t, collective_kinds> calls{}, bytes_sent{};
  void count(Collective kind, std::size_t bytes) {
    ++calls[static_cast<std::size_t>(kind)];
    bytes_sent[static_cast<std::size_t>(kind)] += bytes;
  }
};

/// A group of ranks that exchanges values in host memory. All functions except rank(), size(), description() and abort() are
/// collective over the group: every rank calls them in the same order, with the same number of values.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;

  /// Replaces `values` by their canonical sums over the ranks, on every rank. Sums of integers are exact modulo 2^64.
  virtual void sum(std::span<double> values) = 0;
  virtual void sum(std::span<std::int64_t> values) = 0;
  double sum(double mine) { return sum(std::span(&mine, 1)), mine; }
  std::int64_t sum(std::int64_t mine) { return sum(std::span(&mine, 1)), mine; }
  /// Replaces each value by its maximum over the ranks. Values must be below 2^63.
  void max(std::span<std::size_t> values);
  std::size_t max(std::size_t mine) { return max(std::span(&mine, 1)), mine; }
  /// Returns the minimum over the ranks. A value of 2^63 or more counts as 2^63 - 1.
  std::size_t min(std::size_t mine);
  /// Returns the values of all ranks, ordered by rank: the values of rank r begin at index r * mine.size(). All ranks must
  /// pass the same number of values.
  std::vector<std::int64_t> gather(std::span<const std::int64_t> mine);
  std::vector<double> gather(double mine);
  std::vector<std::string> gather(const std::string& mine);
  /// Returns true if `mine` is true on all ranks. Use it before ranks act on a condition that may differ between them.
  bool all(bool mine) { return sum(std::int64_t{mine ? 0 : 1}) == 0; }
  /// Sends the data of `root` to every rank.
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  std::string broadcast(std::string text, int root);
  virtual void barrier() = 0;

  /// Makes collectives of the other ranks throw instead of wait (see "Errors" above). If another thread of this rank is
  /// executing a collective, that collective throws, too. abort() itself never throws. Not collective.
  virtual void abort() noexcept = 0;
};

/// A group's collectives on device memory. Each collective is queued on the given stream and runs after all work that was
/// queued there before. On an inline stream (device.hpp), the collective is complete when the function returns. All ranks of
/// the group must call them in the same order with the same counts. Counts are in elements and have no upper limit: transfers
/// are cut into pieces below 2^31 bytes.
class Collectives {
 public:
  virtual ~Collectives() = default;
  /// whole = the shards of all ranks, concatenated in the order of ranks; `whole` holds size() * shard_count elements. In
  /// place if `shard` is whole + rank() * shard_count. Sends (size-1) * shard_count elements per rank.
  virtual void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) = 0;
  /// Sums `whole` over the ranks in canonical order. Each rank gets the shard_count elements of the sum that begin at index
  /// rank() * shard_count, and overwrites `shard` with them or adds them to `shard` (`into`). The contents of `whole` are
  /// unspecified afterwards. `shard` must not overlap `whole`, with one exception: with Into::overwrite, `shard` may be whole
  /// + rank() * shard_count. Sends (size-1) * shard_count elements of type `reduce_dtype` per rank. Each rank's contribution,
  /// also the caller's, is rounded once to `reduce_dtype`; sums are fp32. With `nodes/`, the sum over the ranks of a node is
  /// sent to other nodes as fp32.
  virtual void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                              DType reduce_dtype) = 0;
  /// Replaces `data`, on every rank, by its canonical sum over the ranks. Contributions are rounded to `reduce_dtype`; sums are
  /// sent as fp32. Sends about 2 * count * (size-1)/size elements per rank. With `nodes/`, all-reduces of double and int64,
  /// which are small, send up to twice as much.
  virtual void all_reduce(Stream& stream, float* data, std::size_t count, DType reduce_dtype) = 0;
  virtual void all_reduce(Stream& stream, double* data, std::size_t count) = 0;
  /// Sums of integers are exact modulo 2^64.
  virtual void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) = 0;
  /// Calls the all_reduce() above for elements of `type`. `reduce_dtype` is used only if `type` is fp32.
  void all_reduce(Stream& stream, void* data, std::size_t count, DType type, DType reduce_dtype);

  /// Returns zeroed memory for gathered parameters or gradients. Collectives accept any memory, but are fastest if all ranks
  /// pass memory that this function returned. Collective; fails on all ranks or on none. If a step after this call can fail on
  /// some ranks only, run that step by agree(). The buffer may outlive this object.
  virtual Buffer allocate(Device& device, std::size_t bytes) = 0;
  /// The bytes of this object's staging buffers. They are part of the memory plan.
  virtual std::size_t staging_bytes() const = 0;
  /// About how many bytes of other ranks' buffers the collectives read in place. The memory plans of those ranks contain these
  /// bytes, but the system also counts them as resident memory of this process.
  virtual std::size_t borrowed_bytes() const { return 0; }
  virtual const Traffic& traffic() const = 0;
};

/// A group that can also run collectives on the host's memory.
class Communicator : public Group, public Collectives {
 public:
  using Group::sum;
  void sum(std::span<double> values) final { all_reduce(*host_, values.data(), values.size()); }
  void sum(std::span<std::int64_t> values) final { all_reduce(*host_, values.data(), values.size()); }
  using Collectives::all_reduce;

  /// Returns the group of the ranks that passed the same color, ordered by key, then by rank in this group. Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// Returns the group of the ranks that share memory with this one, in the same order as here. Collective.
  virtual std::unique_ptr<Communicator> split_by_node() = 0;

 private:
  const std::shared_ptr<Stream> host_ = make_host_stream();
};

}  // namespace fsdp
