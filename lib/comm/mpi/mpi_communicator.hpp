// Collectives between processes, made of point-to-point messages. MPI's own collectives are not used: MPI_Reduce_scatter has no
// fixed order of sums and took 1.7 to 4 times as long (Open MPI 4.1, two and four ranks of one node, 3 and 64 MiB), and every
// blocking collective keeps a core busy while it waits.
//
// Every rank exchanges messages with all other ranks at once. That costs one latency per collective and sends no more bytes
// than necessary. A sum in canonical order needs all contributions at once, so a reduction receives them piece by piece in a
// staging buffer: while one piece is added up, the next one is sent.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/call.hpp"
#include "comm/member.hpp"
#include "comm/mpi_session.hpp"

namespace fsdp {

/// The data that all groups of a job share.
struct MpiJob {
  CommOptions options;
  std::vector<int> nodes;          // the node of each rank of the job: ranks with the same number share a node
  std::vector<std::string> hosts;  // the host of each rank of the job
};

/// Returns true when all requests are complete. Returns false after `timeout_s` seconds, measured by a WaitTimer (0: no
/// limit), or after `given_up` is set. Polls continuously at first, since most messages arrive soon, then yields the core
/// between two polls. Sleeping instead was no faster (two and four ranks on two idle or busy cores, 3 MB collectives between
/// computations), cost 0.1 ms per small collective, and delays messages, which MPI moves only during its calls.
bool wait_all(std::span<MPI_Request> requests, double timeout_s, const std::atomic<bool>& given_up);

class MpiCommunicator final : public MessageGroup {
 public:
  /// Takes ownership of `comm`. The destructor frees it, except during the unwinding of an exception or after abort(), because
  /// other ranks may then never call MPI_Comm_free.
  MpiCommunicator(MPI_Comm comm, std::shared_ptr<const MpiJob> job);
  MpiCommunicator(const MpiCommunicator&) = delete;
  ~MpiCommunicator() override;

  std::string description() const override;
  std::size_t staging_bytes() const override { return staging_.bytes(); }

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override;
  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override;
  void all_reduce(Stream& stream, float* data, std::size_t count, DType reduce_dtype) override;
  void all_reduce(Stream& stream, double* data, std::size_t count) override;
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) override;
  void broadcast(void* data, std::size_t bytes, int root) override;
  void barrier() override;

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> split_by_node() override;
  std::unique_ptr<MessageGroup> split_messages(int color, int key) override;
  const CommOptions& options() const override { return job_->options; }
  const std::vector<int>& nodes() const override { return nodes_; }
  const std::vector<int>& world_ranks() const override { return world_ranks_; }
  const std::string& host() const override { return job_->hosts[static_cast<std::size_t>(world_ranks_[me()])]; }
  /// Has no effect on the other processes; MpiSession::abort_job ends them.
  void abort() noexcept override { broken_ = true; }

 private:
  // The messages in flight. The array `all` is never reallocated.
  struct Requests {
    std::vector<MPI_Request> all;
    std::vector<int> peers;  // the other rank of each message
    std::size_t used = 0;
    MPI_Request& next(int peer) {
      peers[used] = peer;
      return all[used];
    }
  };

  void begin(const Called& called);
  void expect_ready(const Stream& stream, Call call);
  void send(const void* data, std::size_t bytes, int to, Requests& requests);
  void receive(void* data, std::size_t bytes, int from, Requests& requests);
  /// What a message contains: the sender's own data (`arrival`), or data that the sender has only after it has received data of
  /// other ranks, such as sums (`passing_on`). In the second case the missing rank may be another one than the sender.
  enum class Awaited { arrival, passing_on };
  void wait(Requests& requests, Awaited awaited = Awaited::arrival);

  std::byte* staged_piece(std::size_t set, std::size_t rank);
  template <class In, class T>
  void post_piece(const T* data, std::size_t total, std::size_t piece, std::size_t set);
  template <class In, class T>
  void reduce_shares(T* data, std::size_t total, T* result, Into into);
  void gather_shares(std::byte* data, std::size_t total, std::size_t element_bytes, Awaited awaited);
  template <class T, class In = T>
  void sum_everywhere(Stream& stream, T* data, std::size_t count);

  MPI_Comm comm_;
  std::shared_ptr<const MpiJob> job_;
  std::vector<int> world_ranks_;    // for each rank of this group, its rank in the job
  std::vector<int> nodes_;          // for each rank of this group, the number of its node
  Called called_ = Call::barrier;   // the collective in progress
  std::size_t piece_bytes_;         // the longest message
  std::size_t staged_piece_bytes_;  // the longest message of a reduction; a multiple of 8
  std::atomic<bool> broken_ = false;
  int uncaught_at_start_;
  std::size_t sent_ = 0;  // bytes sent by the collective in progress
  Buffer staging_;        // two sets of pieces, each with room for one piece from every other rank
  std::array<Requests, 2> requests_;
  std::vector<const void*> inputs_;
};

}  // namespace fsdp
