// Collectives of a group that spans nodes, made of the collectives of three other groups: `intra_node` has the ranks of this
// node; `inter_node` has one rank of each node, the one with the same position on its node as this rank; `flat` has all ranks,
// and serves collectives that cannot be split by nodes.
//
// An all-gather sends a shard to each other node once; `intra_node` distributes it there. A sum is split by nodes only if the
// ranks of a node are a whole subtree of the canonical order (communicator.hpp), that is, if their number is a power of two.
// Then the ranks of a node first add up the contributions of that node, each rank one part of the elements, and each part is
// then added up across nodes. Intermediate results are stored in the caller's buffers.
//
// If a rank does not arrive, the ranks of its node can name it; ranks of other nodes only notice that its node is late. So
// every collective begins with a step in which all ranks of a node wait for each other. If the time limit passes after that
// step, a rank waits a little longer before it throws, so that the node of the missing rank reports first. Meanwhile the other
// ranks of its own node may wait for it in the next collective: it aborts their group. They have not run out of time yet, as
// the time limit within a node is a little longer than between nodes.
#pragma once

#include <algorithm>
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
  /// Rank r of `flat` is rank r % intra_node.size() of `intra_node` and rank r / intra_node.size() of `inter_node`.
  /// `intra_node` and `inter_node` have more than one rank. `timeout_s` is the time limit of `flat` and `inter_node`; that of
  /// `intra_node`, if it shares memory, is limit_within_a_node(timeout_s). Not collective.
  NodesCommunicator(std::unique_ptr<Communicator> flat, std::unique_ptr<Communicator> intra_node,
                    std::unique_ptr<Communicator> inter_node, double timeout_s);
  /// 0 stays 0: no limit.
  static double limit_within_a_node(double timeout_s) { return timeout_s + std::min(0.1 * timeout_s, 4.0); }

  /// "MPI between 2 nodes, shared memory within"
  std::string description() const override;
  std::size_t staging_bytes() const override;
  std::size_t borrowed_bytes() const override { return intra_node_->borrowed_bytes(); }

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override;
  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override;
  void all_reduce(Stream& stream, float* data, std::size_t count, DType reduce_dtype) override {
    sum_everywhere(stream, data, count, reduce_dtype);
  }
  void all_reduce(Stream& stream, double* data, std::size_t count) override { sum_everywhere(stream, data, count); }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) override { sum_everywhere(stream, data, count); }
  void broadcast(void* data, std::size_t bytes, int root) override;
  void barrier() override;

  Buffer allocate(Device& device, std::size_t bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> split_by_node() override;
  void abort() noexcept override;

  /// The three groups; traffic() of this object is the sum of their traffic().
  const Communicator& intra_node() const { return *intra_node_; }
  const Communicator& inter_node() const { return *inter_node_; }
  const Communicator& flat() const { return *flat_; }

 private:
  std::size_t node_ranks() const { return static_cast<std::size_t>(intra_node_->size()); }
  std::size_t nodes() const { return static_cast<std::size_t>(inter_node_->size()); }
  std::size_t place() const { return static_cast<std::size_t>(intra_node_->rank()); }
  std::size_t node() const { return static_cast<std::size_t>(inter_node_->rank()); }

  void throw_if_broken() const;
  template <class Within, class Across>
  void by_nodes(const Called& called, const Within& within, const Across& across);
  template <class T>
  void sum_everywhere(Stream& stream, T* data, std::size_t n, DType reduce_dtype = DType::f32);
  std::uint64_t sent_by_parts() const;

  std::unique_ptr<Communicator> flat_, intra_node_, inter_node_;
  double timeout_s_;
  std::atomic<bool> broken_ = false;
};

}  // namespace fsdp
