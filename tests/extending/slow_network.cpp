// A slower network on one machine: each collective waits as long as its bytes would take. The data goes through whatever
// connects the ranks, so that results have the same bits: what changes is when they come.
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "comm/backend.hpp"

namespace {

using namespace fsdp;

constexpr double latency_s = 20e-6, bytes_per_second = 10e9 / 8;  // 10 Gbit/s Ethernet

class SlowCommunicator final : public Communicator {
 public:
  explicit SlowCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string description() const override { return "a slow network over " + inner_->description(); }

  using Communicator::all_reduce;
  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override {
    slowly([&] { inner_->all_gather(stream, shard, whole, shard_count, type); });
  }
  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override {
    slowly([&] { inner_->reduce_scatter(stream, whole, shard, shard_count, into, reduce_dtype); });
  }
  void all_reduce(Stream& stream, float* data, std::size_t count, DType reduce_dtype) override {
    slowly([&] { inner_->all_reduce(stream, data, count, reduce_dtype); });
  }
  void all_reduce(Stream& stream, double* data, std::size_t count) override {
    slowly([&] { inner_->all_reduce(stream, data, count); });
  }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) override {
    slowly([&] { inner_->all_reduce(stream, data, count); });
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    slowly([&] { inner_->broadcast(data, bytes, root); });
  }
  void barrier() override {
    slowly([&] { inner_->barrier(); });
  }

  Buffer allocate(Device& device, std::size_t bytes) override { return inner_->allocate(device, bytes); }
  std::size_t staging_bytes() const override { return inner_->staging_bytes(); }
  std::size_t borrowed_bytes() const override { return inner_->borrowed_bytes(); }
  /// Parts of a group that sends messages are connected as its options say, so that they are slow already.
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  std::unique_ptr<Communicator> split_by_node() override { return inner_->split_by_node(); }
  const Traffic& traffic() const override { return inner_->traffic(); }
  void abort() noexcept override { inner_->abort(); }

 private:
  std::uint64_t bytes_sent() const {
    const auto& by_kind = inner_->traffic().bytes_sent;
    return std::accumulate(by_kind.begin(), by_kind.end(), std::uint64_t{0});
  }

  /// The collectives of a CPU's stream are done on return. What a real network would have taken less has passed already.
  void slowly(const std::function<void()>& collective) {
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t before = bytes_sent();
    collective();
    const double takes_s = latency_s + static_cast<double>(bytes_sent() - before) / bytes_per_second;
    std::this_thread::sleep_until(
        start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(takes_s)));
  }

  std::unique_ptr<Communicator> inner_;
};

}  // namespace

/// The row: messages, slowly.
const fsdp::Backend& slow_backend() {
  static const Backend slow = {
      .name = "slow",
      .about = "slow by MPI, as if the network had 10 Gbit/s",
      .connect = [](std::unique_ptr<MessageGroup> group) -> std::unique_ptr<Communicator> {
        return std::make_unique<SlowCommunicator>(std::move(group));
      },
      .staging_bytes = [](std::span<const int> nodes) { return find_backend("mpi").staging_bytes(nodes); }};
  return slow;
}
