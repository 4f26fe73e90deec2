// Collectives of a group that spans nodes, made of those of smaller groups: `near`, the ranks of this node; `far`, the ranks
// that have this one's place on every node; and `flat`, all ranks, for what cannot be cut.
//
// A gather sends a shard to each other node once, where it is passed on. A sum is cut at nodes only where a node is a whole
// subtree of the canonical order (communicator.hpp), that is, where its ranks are a power of two; then a node's ranks add up
// their parts of it, and each part is added up across nodes. Nothing needs memory beside the caller's buffers.
//
// A rank that does not come is missed by the ranks of its node, who name it, while the other nodes wait for them. So every
// collective begins with something that all ranks of a node come to, and who waits for longer than the limit after that gives
// those who know better time to speak.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/call.hpp"
#include "comm/member.hpp"

namespace fsdp {

class NodesCommunicator final : public GroupMember {
 public:
  /// Rank r of `flat` is rank r % near.size() of `near` and rank r / near.size() of `far`, both larger than one. Not
  /// collective.
  NodesCommunicator(std::unique_ptr<Communicator> flat, std::unique_ptr<Communicator> near, std::unique_ptr<Communicator> far);

  /// "MPI between 2 nodes, shared memory within"
  std::string description() const override;
  std::size_t staging_bytes() const override;
  std::size_t borrowed_bytes() const override { return near_->borrowed_bytes(); }

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override;
  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into, DType travel) override;
  void all_reduce(Stream& stream, float* data, std::size_t count, DType travel) override {
    sum_everywhere(stream, data, count, travel);
  }
  void all_reduce(Stream& stream, double* data, std::size_t count) override { sum_everywhere(stream, data, count); }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) override { sum_everywhere(stream, data, count); }
  void broadcast(void* data, std::size_t bytes, int root) override;
  void barrier() override;

  Buffer allocate(Device& device, std::size_t bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> split_by_node() override;
  void abort() noexcept override;

  /// What their traffic() counts during a collective is what this one's counts.
  const Communicator& near() const { return *near_; }
  const Communicator& far() const { return *far_; }
  const Communicator& flat() const { return *flat_; }

 private:
  std::size_t node_ranks() const { return static_cast<std::size_t>(near_->size()); }
  std::size_t nodes() const { return static_cast<std::size_t>(far_->size()); }
  std::size_t place() const { return static_cast<std::size_t>(near_->rank()); }
  std::size_t node() const { return static_cast<std::size_t>(far_->rank()); }

  void throw_if_broken() const;
  template <class Within, class Across>
  void by_nodes(const Called& called, const Within& within, const Across& across);
  template <class T>
  void sum_everywhere(Stream& stream, T* data, std::size_t n, DType travel = DType::f32);
  std::uint64_t sent_by_parts() const;

  std::unique_ptr<Communicator> flat_, near_, far_;
  std::atomic<bool> broken_ = false;
};

}  // namespace fsdp
