#include "comm/threads/threads.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/format.hpp"
#include "comm/member.hpp"
#include "comm/packed.hpp"
#include "comm/tree_sum.hpp"

namespace fsdp {

namespace {

// Shared by all ranks of one call of run_ranks() and by all groups split from them, so that abort() ends all of them.
struct SharedJob {
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
};

// The data that the ranks of one group share. The ranks read each other's memory; Traffic counts the bytes that the MPI
// backend would send.
struct SharedGroup {
  // The data that one rank shows to the other ranks during one collective.
  struct Slot {
    const void* data = nullptr;
    std::size_t count = 0;
    int color = 0, key = 0;
    std::shared_ptr<SharedGroup> made;
  };

  SharedGroup(std::shared_ptr<SharedJob> job_, std::vector<int> nodes_)
      : job(std::move(job_)), nodes(std::move(nodes_)), slots(nodes.size()) {}

  // In a collective, a rank calls enter(), reads the other ranks' memory, and calls leave(). Either all ranks return from
  // enter() or all throw: the mutex decides whether the last rank arrived before the abort. leave() waits for all ranks even
  // after an abort, since no rank can fail between the two calls. So a rank that throws never frees memory that another rank
  // still reads.
  void enter() { wait_for_all(true); }
  void leave() { wait_for_all(false); }

  std::shared_ptr<SharedJob> job;
  std::vector<int> nodes;  // by rank
  std::vector<Slot> slots;

 private:
  void wait_for_all(bool abortable) {
    std::unique_lock lock(job->mutex);
    if (abortable && job->aborted) throw GroupAborted();
    if (++arrived_ == slots.size()) {
      arrived_ = 0;
      ++round_;
      lock.unlock();
      job->changed.notify_all();
      return;
    }
    const std::uint64_t round = round_;
    job->changed.wait(lock, [&] { return round_ != round || (abortable && job->aborted); });
    if (round_ == round) throw GroupAborted();
  }

  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
};

class ThreadCommunicator final : public GroupMember {
 public:
  ThreadCommunicator(std::shared_ptr<SharedGroup> group, int rank)
      : GroupMember(rank, static_cast<int>(group->slots.size())), group_(std::move(group)), inputs_(ranks()) {}

  std::string description() const override { return "threads, " + plural(size(), "rank"); }
  std::size_t staging_bytes() const override { return 0; }

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override {
    expect_usable(stream);
    const std::size_t bytes = shard_count * size_of(type);
    publish(shard, bytes);
    for (std::size_t r = 0; r < ranks(); ++r) {
      std::byte* target = static_cast<std::byte*>(whole) + r * bytes;
      if (bytes != 0 && group_->slots[r].data != target) std::memcpy(target, group_->slots[r].data, bytes);
    }
    group_->leave();
    count(Collective::all_gather, (ranks() - 1) * bytes);
  }

  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override {
    expect_usable(stream);
    const std::size_t total = ranks() * shard_count;
    with_element(reduce_dtype, [&]<class In>() {
      pack_shares<In>(whole, total, ranks());
      publish(whole, total);
      sum_shares<float, In>(total, shard, into);
      group_->leave();
    });
    count(Collective::reduce_scatter, size_of(reduce_dtype) * (total - shard_count));
  }

  void all_reduce(Stream& stream, float* data, std::size_t n, DType reduce_dtype) override {
    with_element(reduce_dtype, [&]<class In>() { sum_everywhere<float, In>(stream, data, n); });
  }
  void all_reduce(Stream& stream, double* data, std::size_t n) override { sum_everywhere(stream, data, n); }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t n) override {
    sum_everywhere(stream, reinterpret_cast<std::uint64_t*>(data), n);
  }

  void broadcast(void* data, std::size_t bytes, int root) override {
    expect(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
    publish(data, bytes);
    if (rank() != root && bytes != 0) std::memcpy(data, group_->slots[static_cast<std::size_t>(root)].data, bytes);
    group_->leave();
    count(Collective::broadcast, static_cast<std::size_t>(tree_children(relative_to(root), size())) * bytes);
  }

  void barrier() override { group_->enter(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto& slots = group_->slots;
    slots[me()].color = color;
    slots[me()].key = key;
    group_->enter();
    std::vector<std::size_t> members;
    for (std::size_t r = 0; r < ranks(); ++r)
      if (slots[r].color == color) members.push_back(r);
    std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) { return slots[a].key < slots[b].key; });
    if (members.front() == me()) {
      std::vector<int> nodes;
      for (const std::size_t r : members) nodes.push_back(group_->nodes[r]);
      slots[me()].made = std::make_shared<SharedGroup>(group_->job, std::move(nodes));
    }
    group_->leave();
    const int place = static_cast<int>(std::find(members.begin(), members.end(), me()) - members.begin());
    auto part = std::make_unique<ThreadCommunicator>(slots[members.front()].made, place);
    group_->leave();
    slots[me()].made.reset();
    return part;
  }
  std::unique_ptr<Communicator> split_by_node() override { return split(group_->nodes[me()], rank()); }

  void abort() noexcept override {
    {
      const std::lock_guard lock(group_->job->mutex);
      group_->job->aborted = true;
    }
    group_->job->changed.notify_all();
  }

 private:
  // Shows this rank's buffer, waits for the others' buffers, and checks that all ranks passed the same count. All ranks compare
  // the same counts, so that all throw or none.
  void publish(const void* data, std::size_t n) {
    auto& slots = group_->slots;
    slots[me()].data = data;
    slots[me()].count = n;
    group_->enter();
    expect(std::all_of(slots.begin(), slots.end(), [&](const SharedGroup::Slot& slot) { return slot.count == slots[0].count; }),
           "all ranks call a collective with the same count");
  }

  // Overwrites `result` with the canonical sum over ranks of this rank's share of the published buffers, or adds that sum to
  // it.
  template <class T, class In>
  void sum_shares(std::size_t total, T* result, Into into) {
    const Range mine = share_of(total, me());
    if (mine.empty()) return;  // buffers may be null in this case
    for (std::size_t r = 0; r < ranks(); ++r)
      inputs_[r] = packed<In>(static_cast<const T*>(group_->slots[r].data) + mine.begin, mine.size());
    tree_sum<T, In>(inputs_, mine.size(), result, into);
  }

  template <class T, class In = T>
  void sum_everywhere(Stream& stream, T* data, std::size_t n) {
    expect_usable(stream);
    pack_shares<In>(data, n, ranks());
    publish(data, n);
    // Each rank first overwrites its own share in its own buffer, which no other rank reads before leave(). After leave() it
    // overwrites the other shares in its buffer, which no other rank reads any more.
    sum_shares<T, In>(n, data + share_of(n, me()).begin, Into::overwrite);
    group_->leave();
    for (std::size_t r = 0; r < ranks(); ++r) {
      const Range part = share_of(n, r);
      if (r != me() && !part.empty())
        std::copy_n(static_cast<const T*>(group_->slots[r].data) + part.begin, part.size(), data + part.begin);
    }
    group_->leave();
    // With messages, a rank would send the other shares to their owners, then the sum of its own share to all other ranks.
    const std::size_t mine = share_of(n, me()).size();
    count(Collective::all_reduce, sizeof(In) * (n - mine) + sizeof(T) * (ranks() - 1) * mine);
  }

  std::shared_ptr<SharedGroup> group_;
  std::vector<const void*> inputs_;
};

}  // namespace

void run_ranks(int size, const std::function<void(Communicator&)>& body, int ranks_per_node) {
  expect(size > 0 && ranks_per_node >= 0, "run_ranks() takes at least one rank");
  std::vector<int> nodes;
  for (int rank = 0; rank < size; ++rank) nodes.push_back(ranks_per_node == 0 ? 0 : rank / ranks_per_node);
  const auto group = std::make_shared<SharedGroup>(std::make_shared<SharedJob>(), std::move(nodes));

  struct Outcome {
    std::exception_ptr error;
    bool consequence = false;
  };
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      ThreadCommunicator comm(group, rank);
      try {
        body(comm);
        return;
      } catch (const GroupAborted&) {
        outcome = {std::current_exception(), true};
      } catch (...) {
        outcome = {std::current_exception(), false};
      }
      comm.abort();
    });
  for (std::thread& thread : threads) thread.join();

  for (const bool consequence : {false, true})
    for (const Outcome& outcome : outcomes)
      if (outcome.error && outcome.consequence == consequence) std::rethrow_exception(outcome.error);
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<ThreadCommunicator>(std::make_shared<SharedGroup>(std::make_shared<SharedJob>(), std::vector<int>{0}),
                                              0);
}

}  // namespace fsdp
