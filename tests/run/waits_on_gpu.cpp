// The host waits for a GPU once per update: at its end, for the sums. The double of CUDA counts the waits, knows the streams
// and events that a device has, and counts the products for which an algorithm is chosen.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "kernels/kernels.hpp"
#include "run/sharded_model.hpp"
#include "run/small_model.hpp"
#include "support/before_operation.hpp"
#include "support/places.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns the increase of `count()` in each of some updates, by rank.
std::vector<std::vector<std::uint64_t>> counted(int ranks, const char* strategy, Threads threads, std::uint64_t (*count)(),
                                                const StatePlaces& places = {}) {
  std::vector<std::vector<std::uint64_t>> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& world) {
    const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
    ShardedModel sharded(small_model(),
                         {.strategy = strategy,
                          .batch = {2, 8},
                          .types = {.parameter = DType::bf16},
                          .plan = {.micro_batches = 3, .checkpoint_activations = true, .places = places}},
                         world, cuda_traits());
    Executor& executor = sharded.allocate(*device, {.nvme_path = std::filesystem::current_path()},
                                          {.kind = threads == Threads::of_own_gpu ? "nccl" : "mpi"});
    executor.initialize_parameters(1);
    executor.publish_parameters();
    bool all_happened = true;
    for (std::uint64_t u = 1; u <= 6; ++u) {
      const std::uint64_t before = count();
      // With the limits of --skip-spikes; the last update exceeds one of them.
      const UpdateResult result = executor.run_update(read_some, {.update = u,
                                                                  .learning_rate = 1e-3,
                                                                  .clip_norm = 1,
                                                                  .tokens = static_cast<double>(3 * 16 * ranks),
                                                                  .most_loss = 1e9,
                                                                  .most_norm = u == 6 ? 0 : 1e9});
      all[static_cast<std::size_t>(world.rank())].push_back(count() - before);
      all_happened = all_happened && result.finite() && result.loss > 1 && result.is_spike == (u == 6);
    }
    expect(all_happened, "updates happen, and the last one is a spike");  // at this point no other rank waits for this one
  });
  return all;
}

/// There is no wait if the GPU was faster than the host.
void check_at_most_one(const std::vector<std::vector<std::uint64_t>>& of_ranks) {
  for (const auto& of_updates : of_ranks) {
    BOOST_TEST(of_updates.size() == 6u);
    for (const std::uint64_t count : of_updates) BOOST_TEST(count <= 1);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(one_for_each_update) { check_at_most_one(counted(1, "full", Threads::of_gpu, cuda_double::host_waits)); }

// Changed state is unloaded after the optimizer, on another stream.
BOOST_AUTO_TEST_CASE(one_for_each_update_that_is_unloaded) {
  check_at_most_one(counted(1, "full", Threads::of_gpu, cuda_double::streams_found_busy, offloaded(true, true)));
  check_at_most_one(counted(2, "full", Threads::of_own_gpu, cuda_double::streams_found_busy, offloaded(true, true)));
}

// Under "optim" the new parameters are gathered after the optimizer, on another stream than the one that copies the sums.
BOOST_AUTO_TEST_CASE(one_for_each_update_of_several_ranks) {
  for (const char* strategy : {"full", "optim"})
    check_at_most_one(counted(2, strategy, Threads::of_own_gpu, cuda_double::streams_found_busy));
}

// With offloading all five streams record events. Those of NCCL's collectives depend on delays: only their end is checked.
BOOST_AUTO_TEST_CASE(events_are_reused_and_destroyed) {
  for (const StatePlaces& places : {offloaded(true, true), in_a_file(true)}) {
    const auto made = counted(1, "full", Threads::of_gpu, cuda_double::live_events, places)[0];
    BOOST_TEST(made[0] > 0u);
    for (std::size_t u = 1; u < made.size(); ++u) BOOST_TEST(made[u] == 0u);
  }
  counted(2, "full", Threads::of_own_gpu, cuda_double::live_events);
  BOOST_TEST(cuda_double::live_events() == 0u);
  BOOST_TEST(cuda_double::live_streams().empty());
}

// Strategies place operands at different multiples of 64 bytes. cuBLASLt may choose other algorithms, with other bits, for
// other alignments, so that it is told no more than the 16 bytes that its kernels load at once.
BOOST_AUTO_TEST_CASE(algorithms_do_not_depend_on_where_a_strategy_places_operands) {
  const auto device = make_device(Threads::of_gpu, 0);
  const auto stream = device->make_stream();
  const Buffer memory = device->allocate(4096);
  const auto asked_at = [&](std::size_t offset) {
    auto* const x = reinterpret_cast<float*>(memory.data() + offset);
    const std::uint64_t before = cuda_double::algorithms_asked_for();
    on_stream(*stream, [&] {
      kernels::gemm(*stream, kernels::Trans::no, kernels::Trans::no, 4, 4, 4, x, 4, x + 64, 4, x + 128, 4,
                    kernels::Write::overwrite);
    });
    return cuda_double::algorithms_asked_for() - before;
  };
  BOOST_TEST(asked_at(0) == 1u);
  for (const std::size_t offset : {64, 16, 1024, 48}) BOOST_TEST(asked_at(offset) == 0u);
  BOOST_TEST(asked_at(4) == 1u);
}

// A smaller number is a higher priority.
BOOST_AUTO_TEST_CASE(communication_goes_before_computation_and_no_stream_waits_for_the_null_stream) {
  const auto device = make_device(Threads::of_gpu, 0);
  const auto compute = device->make_stream(StreamUse::compute), communication = device->make_stream(StreamUse::communication);
  const auto streams = cuda_double::live_streams();
  BOOST_REQUIRE(streams.size() == 2u);
  BOOST_TEST(streams[1].priority < streams[0].priority);
  for (const auto& stream : streams) BOOST_TEST(!stream.blocking);
}

namespace {

constexpr std::size_t bytes_copied = std::size_t{1} << 20;

/// A GPU's streams, memory of the GPU, and pinned memory.
struct TwoKinds {
  std::unique_ptr<Device> device = make_device(Threads::of_gpu, 0);
  std::shared_ptr<Stream> compute = device->make_stream(), storage = device->make_stream(StreamUse::storage);
  Buffer there = device->allocate(bytes_copied), other = device->allocate(bytes_copied),
         here = device->allocate_staging(bytes_copied), found = device->allocate_staging(bytes_copied);

  void keep_busy(Stream& stream) const {
    for (int i = 0; i < 30; ++i) stream.copy(other.data(), there.data(), bytes_copied);
  }
  void fill(int value) const { std::memset(here.data(), value, bytes_copied); }
  bool found_is(int value) const {
    return found.data()[0] == std::byte(value) && found.data()[bytes_copied - 1] == std::byte(value);
  }
};

/// Work of a stream that calls a function.
template <class Call>
Work work_of(Call& call) {
  return {[](void* context, std::size_t) { (*static_cast<Call*>(context))(); }, &call};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_storage_stream_waits_for_the_gpu) {
  const TwoKinds on;
  for (const int value : {1, 2, 3}) {
    on.fill(value);
    for (int i = 0; i < 6; ++i) on.keep_busy(*on.compute);
    on.compute->copy(on.there.data(), on.here.data(), bytes_copied);
    on.storage->wait(on.compute->record());
    bool is_there = false;
    auto fetch = [&] {
      on.storage->copy(on.found.data(), on.there.data(), bytes_copied);
      is_there = on.found_is(value);  // a copy of a storage stream is done when it returns
      std::memset(on.found.data(), 0, bytes_copied);
      on.keep_busy(*on.storage);
      on.storage->copy(on.found.data(), on.there.data(), bytes_copied);
      is_there = is_there && on.found_is(value);
    };
    on.storage->submit(work_of(fetch));
    on.storage->synchronize();
    BOOST_TEST(is_there);
    on.compute->synchronize();
  }
  BOOST_TEST(is_host(on.storage->kind()));
  const auto streams = cuda_double::live_streams();
  BOOST_REQUIRE(streams.size() == 2u);
  BOOST_TEST(streams[1].priority < streams[0].priority);
}

BOOST_AUTO_TEST_CASE(the_gpu_waits_for_a_storage_stream) {
  const TwoKinds on;
  for (const int value : {1, 2, 3}) {
    auto load = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      on.fill(value);
      on.storage->copy(on.there.data(), on.here.data(), bytes_copied);
    };
    on.storage->submit(work_of(load));
    on.compute->wait(on.storage->record());
    on.compute->copy(on.found.data(), on.there.data(), bytes_copied);
    on.compute->synchronize();
    BOOST_TEST(on.found_is(value));
    on.storage->synchronize();
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_fails_ends_all_ranks) {
  for (const Threads threads : {Threads::of_gpu, Threads::of_own_gpu})
    for (const StreamId where : {StreamId::load, StreamId::unload}) {
      std::atomic<int> ended = 0, failed = 0;
      const auto rank = [&](Communicator& world) {
        const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
        ShardedModel sharded(small_model(), {.batch = {2, 8}, .plan = {.places = in_a_file(true)}}, world, cuda_traits());
        int left = 7;
        BeforeOperation fail([&](const Operation& op) {
          if (world.rank() == 1 && op.stream == where && left-- == 0) throw RunError("tile 3 cannot be read");
        });
        Executor& executor = sharded.allocate(*device, {.nvme_path = std::filesystem::current_path()},
                                              {.kind = threads == Threads::of_own_gpu ? "nccl" : "mpi", .timeout_s = 0.5});
        executor.observe(fail);
        try {
          executor.initialize_parameters(1);
          executor.publish_parameters();
          for (int u = 0; u < 3; ++u) executor.run_update(read_some, {.learning_rate = 1e-2, .tokens = 32});
        } catch (const std::exception& error) {
          ++ended;
          if (error.what() == std::string("tile 3 cannot be read")) ++failed;
          throw;
        }
      };
      BOOST_CHECK_THROW(run_ranks(2, rank), std::exception);
      BOOST_TEST(ended == 2);
      BOOST_TEST(failed == 1);
    }
}

BOOST_AUTO_TEST_CASE(a_storage_stream_that_fails_ends_all_waits) {
  const TwoKinds on;
  auto load = [] { throw RunError("a tile cannot be read"); };
  on.storage->submit(work_of(load));
  const Event loaded = on.storage->record();
  BOOST_CHECK_THROW(on.compute->wait(loaded), StreamFailed);
  BOOST_CHECK_THROW(on.storage->synchronize(), RunError);
  // Work that waits for the GPU is dropped, too.
  on.keep_busy(*on.compute);
  on.storage->wait(on.compute->record());
  bool is_done = false;
  auto late = [&] { is_done = true; };
  on.storage->submit(work_of(late));
  on.storage->cancel();
  BOOST_CHECK_THROW(on.storage->synchronize(), StreamFailed);
  BOOST_TEST(!is_done);
  on.compute->synchronize();
}
