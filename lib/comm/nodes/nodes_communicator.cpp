#include "comm/nodes/nodes_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "comm/agree.hpp"
#include "comm/topology.hpp"

namespace fsdp {

namespace {

void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

std::uint64_t bytes_sent_by(const Communicator& comm) {
  const auto& bytes = comm.traffic().bytes_sent;
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

/// Returns "shared memory" for a description such as "shared memory, 4 ranks".
std::string kind_of(const Communicator& comm) {
  const std::string text = comm.description();
  return text.substr(0, text.find(','));
}

}  // namespace

NodesCommunicator::NodesCommunicator(std::unique_ptr<Communicator> flat, std::unique_ptr<Communicator> intra_node,
                                     std::unique_ptr<Communicator> inter_node, double timeout_s)
    : GroupMember(flat->rank(), flat->size()),
      flat_(std::move(flat)),
      intra_node_(std::move(intra_node)),
      inter_node_(std::move(inter_node)),
      timeout_s_(timeout_s) {
  expect(intra_node_->size() > 1 && inter_node_->size() > 1 && intra_node_->size() * inter_node_->size() == size() &&
             inter_node_->rank() * intra_node_->size() + intra_node_->rank() == rank(),
         "every node has the same number of consecutive ranks");
}

std::string NodesCommunicator::description() const {
  return format("{} between {} nodes, {} within{}", kind_of(*inter_node_), nodes(), kind_of(*intra_node_),
                is_subtree(node_ranks()) ? "" : format(", sums by {}", kind_of(*flat_)));
}

std::size_t NodesCommunicator::staging_bytes() const {
  return flat_->staging_bytes() + intra_node_->staging_bytes() + inter_node_->staging_bytes();
}

void NodesCommunicator::all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) {
  expect_usable(stream);
  const std::uint64_t before = sent_by_parts();
  const std::size_t bytes = shard_count * size_of(type);
  auto* const all = static_cast<std::byte*>(whole);
  by_nodes(
      {Call::all_gather, stream.subject}, [&] { intra_node_->barrier(); },
      [&] {
        // 1. inter_node gathers the shards of its ranks, one per node, at the start of `whole`.
        move_bytes(all + node() * bytes, shard, bytes);
        inter_node_->all_gather(stream, all + node() * bytes, all, shard_count, type);
        // 2. For each node k, intra_node gathers the shards of that node into block k of `whole`. The last block is first, so
        // that no gather overwrites shards of step 1 that are still needed.
        for (std::size_t k = nodes(); k-- > 0;) {
          std::byte* const block = all + k * node_ranks() * bytes;
          std::byte* mine = all + k * bytes;
          if (k == 0) {  // this shard is in block 0 itself: move it to its final position
            mine = block + place() * bytes;
            move_bytes(mine, block, bytes);
          }
          intra_node_->all_gather(stream, mine, block, shard_count, type);
        }
      });
  count(Collective::all_gather, sent_by_parts() - before);
}

void NodesCommunicator::reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                                       DType reduce_dtype) {
  expect_usable(stream);
  const std::uint64_t before = sent_by_parts();
  const bool in_place = shard_count != 0 && shard == whole + me() * shard_count;
  expect(!in_place || into == Into::overwrite, "a sum in place overwrites");
  if (is_subtree(node_ranks())) {
    by_nodes(
        {Call::reduce_scatter, stream.subject},
        [&] {
          // 1. For each node k, intra_node adds up this node's contributions to the shards of node k (block k of `whole`). This
          // rank gets the sum for one rank of node k, and stores it at whole + k * shard_count, in memory that all ranks of
          // this node have already read.
          for (std::size_t k = 0; k < nodes(); ++k) {
            float* const block = whole + k * node_ranks() * shard_count;
            float* const sum = k == 0 ? block + place() * shard_count : whole + k * shard_count;
            intra_node_->reduce_scatter(stream, block, sum, shard_count, Into::overwrite, reduce_dtype);
            if (k == 0) move_bytes(whole, sum, shard_count * sizeof(float));
          }
        },
        [&] {
          // 2. inter_node adds up these sums over the nodes. If `shard` is part of `whole`, it may overlap data that is still
          // to be sent, so the result is moved to `shard` afterwards.
          float* const mine = whole + node() * shard_count;
          inter_node_->reduce_scatter(stream, whole, in_place ? mine : shard, shard_count, into, DType::f32);
          if (in_place) move_bytes(shard, mine, shard_count * sizeof(float));
        });
  } else {
    throw_if_broken();
    flat_->reduce_scatter(stream, whole, shard, shard_count, into, reduce_dtype);
  }
  count(Collective::reduce_scatter, sent_by_parts() - before);
}

template <class T>
void NodesCommunicator::sum_everywhere(Stream& stream, T* data, std::size_t n, DType reduce_dtype) {
  expect_usable(stream);
  const std::uint64_t before = sent_by_parts();
  const auto sum = [&stream](Communicator& part, T* values, std::size_t count, DType type) {
    if constexpr (std::is_same_v<T, float>)
      part.all_reduce(stream, values, count, type);
    else
      part.all_reduce(stream, values, count);
  };
  if (is_subtree(node_ranks())) {
    const std::size_t parted = elements_in_parts(n, sizeof(T), node_ranks()), part = parted / node_ranks(), rest = n - parted;
    T *const mine = data + place() * part, *const uncut = data + parted;
    by_nodes(
        {Call::all_reduce, stream.subject},
        [&] {
          if constexpr (std::is_same_v<T, float>)
            if (part > 0) intra_node_->reduce_scatter(stream, data, mine, part, Into::overwrite, reduce_dtype);
          if (rest > 0) sum(*intra_node_, uncut, rest, reduce_dtype);
        },
        [&] {
          if (part > 0) sum(*inter_node_, mine, part, DType::f32);
          if (rest > 0) sum(*inter_node_, uncut, rest, DType::f32);
          if constexpr (std::is_same_v<T, float>)
            if (part > 0) intra_node_->all_gather(stream, mine, data, part, DType::f32);
        });
  } else {
    throw_if_broken();
    sum(*flat_, data, n, reduce_dtype);
  }
  count(Collective::all_reduce, sent_by_parts() - before);
}

void NodesCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  const std::uint64_t before = sent_by_parts();
  expect(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
  const int place_of_root = root % intra_node_->size();
  by_nodes(
      Call::broadcast, [&] { intra_node_->barrier(); },
      [&] {
        if (intra_node_->rank() == place_of_root) inter_node_->broadcast(data, bytes, root / intra_node_->size());
        intra_node_->broadcast(data, bytes, place_of_root);
      });
  count(Collective::broadcast, sent_by_parts() - before);
}

// Waits for all ranks of this node, then for one rank of every other node. Each of these has waited for its own node before.
void NodesCommunicator::barrier() {
  by_nodes(
      Call::barrier, [&] { intra_node_->barrier(); }, [&] { inter_node_->barrier(); });
}

Buffer NodesCommunicator::allocate(Device& device, std::size_t bytes) {
  throw_if_broken();
  return agree(*flat_, [&] { return intra_node_->allocate(device, bytes); });  // may fail on one node only
}

std::unique_ptr<Communicator> NodesCommunicator::split(int color, int key) {
  throw_if_broken();
  return flat_->split(color, key);
}

std::unique_ptr<Communicator> NodesCommunicator::split_by_node() {
  throw_if_broken();
  return flat_->split_by_node();
}

void NodesCommunicator::abort() noexcept {
  broken_ = true;
  for (Communicator* part : {intra_node_.get(), inter_node_.get(), flat_.get()}) part->abort();
}

void NodesCommunicator::throw_if_broken() const {
  if (broken_) throw GroupAborted();
}

// Runs a collective in two steps. `within` communicates only within the node and waits for all ranks of the node; `across`
// does the rest of the collective.
template <class Within, class Across>
void NodesCommunicator::by_nodes(const Called& called, const Within& within, const Across& across) {
  throw_if_broken();
  bool node_is_here = false;
  try {
    within();
    node_is_here = true;
    across();
  } catch (const CollectiveTimeout& missed) {
    broken_ = true;
    if (!node_is_here) throw not_arrived(missed.who, missed.ranks, name_of(called), timeout_s_);
    // Ranks of this node may already wait for this rank in the next collective. They must not report it as missing.
    intra_node_->abort();
    let_others_report_first(timeout_s_);
    throw not_passed_on(missed.who, missed.ranks, name_of(called), timeout_s_);
  }
}

std::uint64_t NodesCommunicator::sent_by_parts() const {
  return bytes_sent_by(*flat_) + bytes_sent_by(*intra_node_) + bytes_sent_by(*inter_node_);
}

}  // namespace fsdp
