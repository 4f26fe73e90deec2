// A group of ranks, for values of the host, and its collectives, for memory of devices. `mpi/` (processes), `shm/` (processes
// of one node), `nodes/` (processes of several nodes, made of the other two) and `threads/` (logical ranks of one process)
// implement it, and `nccl/` the collectives of GPUs; code above this folder never asks which.
//
// Order of sums. Every reduction adds in one canonical order that depends on the number of ranks alone: adjacent ranks pair at
// stride 1, 2, 4, ...: ((0+1)+(2+3))+(4+...). So all-reduce and reduce-scatter give the same bits, whatever the backend, the
// chunking or the timing. NCCL's collectives have another order where the user asks for it (SumOrder::library).
//
// Errors. A rank that throws out of a collective, or between collectives, must not leave the others waiting: whoever unwinds
// calls abort(), and then ends. Threads and shared memory: every rank's collectives throw GroupAborted from then on, those that
// wait too. MPI: this rank's do, and by nodes those of its node; the other processes are ended by MpiSession::abort_job, which
// main() calls after it has printed the error. Between processes, the ranks that do not arrive within the time that CommOptions
// gives are named by those that wait: they throw CollectiveTimeout.
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

/// Whether a reduction replaces its destination or adds to it (destination + canonical sum, one addition).
enum class Into { overwrite, add };

/// Which order the sums of a GPU's collectives have: the canonical one, or the one that NCCL takes.
enum class SumOrder { canonical, library };

/// Thrown by a collective because some rank called abort(): a consequence, never the cause.
struct GroupAborted : std::runtime_error {
  GroupAborted() : std::runtime_error("another rank failed, so that this collective cannot be done") {}
};

/// Thrown by a collective because ranks did not come. The group is of no use any more: all later ones throw, too.
struct CollectiveTimeout : RunError {
  CollectiveTimeout(const std::string& message, std::string who_is_missing, std::vector<int> ranks_of_who, double waited_s)
      : RunError(message), who(std::move(who_is_missing)), ranks(std::move(ranks_of_who)), timeout_s(waited_s) {}
  std::string who;         // "rank 3 on node7", "ranks 1 and 3 on node7"
  std::vector<int> ranks;  // of the job, whatever the group, in order; none: unknown
  double timeout_s;
};

/// What one rank put on the wire since construction, by kind of collective; within a node, what it would have put there.
struct Traffic {
  std::array<std::uint64_t, collective_kinds> calls{}, bytes_sent{};
  void count(Collective kind, std::size_t bytes) {
    ++calls[static_cast<std::size_t>(kind)];
    bytes_sent[static_cast<std::size_t>(kind)] += bytes;
  }
};

/// A group of ranks as the host sees it: values of the host are added up, compared or sent in one call. All functions except
/// rank(), size(), description() and abort() are collective over the group: every rank calls them in the same order, with as
/// many values.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;

  /// The canonical sum over ranks, on every rank: of integers exact, modulo 2^64.
  virtual void sum(std::span<double> values) = 0;
  virtual void sum(std::span<std::int64_t> values) = 0;
  double sum(double mine) { return sum(std::span(&mine, 1)), mine; }
  std::int64_t sum(std::int64_t mine) { return sum(std::span(&mine, 1)), mine; }
  /// The largest that any rank has, below 2^63; each for itself.
  void max(std::span<std::size_t> values);
  std::size_t max(std::size_t mine) { return max(std::span(&mine, 1)), mine; }
  /// What each rank has, by rank: of rank r the numbers from [r * mine.size()]. All ranks give equally many numbers.
  std::vector<std::int64_t> gather(std::span<const std::int64_t> mine);
  std::vector<double> gather(double mine);
  std::vector<std::string> gather(const std::string& mine);
  /// True if it is true on all ranks: agree before anyone acts on what may differ.
  bool all(bool mine) { return sum(std::int64_t{mine ? 0 : 1}) == 0; }
  /// What `root` has, on every rank.
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  std::string broadcast(std::string text, int root);
  virtual void barrier() = 0;

  /// Makes the other ranks' collectives throw instead of waiting, and this rank's, if another thread is in one; never throws
  /// itself. Not collective.
  virtual void abort() noexcept = 0;
};

/// A group's collectives on the memory of a device. Each is work of the stream that it is given: it is done after all that the
/// stream was given before, and where the stream does its work at once, it is done on return. All are collective over the
/// group, in the same order with the same counts. Counts are elements and may be any size: transfers are cut into pieces below
/// 2^31 bytes.
class Collectives {
 public:
  virtual ~Collectives() = default;
  /// whole = concatenation by rank of each rank's shard; whole holds size() * shard_count elements. In place if shard is
  /// whole + rank() * shard_count. Sends (size-1) * shard_count elements per rank.
  virtual void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) = 0;
  /// shard (overwritten or added to) = canonical sum over ranks of their whole[rank() * shard_count ...]; whole is left
  /// unspecified. shard must not overlap it, except that what is overwritten may be whole + rank() * shard_count. Sends
  /// (size-1) * shard_count elements of type `travel` per rank: what each rank adds is rounded to it, its own, too, once; sums
  /// are fp32, and those of a node go on to other nodes as fp32.
  virtual void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into, DType travel) = 0;
  /// data = canonical sum over ranks, on every rank, of what each has, rounded to `travel`; the sums travel as fp32. Sends
  /// 2 (size-1)/size * count elements per rank (up to rounding); where the group goes by nodes (nodes/), up to twice as many of
  /// double and int64, whose sums are small.
  virtual void all_reduce(Stream& stream, float* data, std::size_t count, DType travel) = 0;
  virtual void all_reduce(Stream& stream, double* data, std::size_t count) = 0;
  /// Exact, modulo 2^64.
  virtual void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) = 0;
  /// One of these three, as `type` says; `travel` is read for fp32 alone.
  void all_reduce(Stream& stream, void* data, std::size_t count, DType type, DType travel);

  /// Memory for gathered parameters or gradients, of the kind this backend moves best: collectives take any memory, and are
  /// fastest where all ranks pass a buffer that lies in this one. Zeros. Collective, and fails on all ranks or on none: a step
  /// that may fail on one rank alone comes after it, or is agreed on before. The buffer may outlive this object.
  virtual Buffer allocate(Device& device, std::size_t bytes) = 0;
  /// Bytes of staging that this object itself holds (part of the memory plan).
  virtual std::size_t staging_bytes() const = 0;
  /// About how many bytes of other ranks' buffers the collectives read where they lie. They exist once and are in those ranks'
  /// plans, but the system counts them as resident in this process, too.
  virtual std::size_t borrowed_bytes() const { return 0; }
  virtual const Traffic& traffic() const = 0;
};

/// A group whose collectives reach the host's memory: it is both.
class Communicator : public Group, public Collectives {
 public:
  using Group::sum;
  void sum(std::span<double> values) final { all_reduce(*host_, values.data(), values.size()); }
  void sum(std::span<std::int64_t> values) final { all_reduce(*host_, values.data(), values.size()); }
  using Collectives::all_reduce;

  /// The ranks that gave the same color, ordered by key, then by rank here. Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// The ranks that share memory with this one, in the order that they have here. Collective.
  virtual std::unique_ptr<Communicator> split_by_node() = 0;

 private:
  const std::shared_ptr<Stream> host_ = make_host_stream();
};

}  // namespace fsdp
