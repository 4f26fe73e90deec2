// Collectives of GPUs through host memory, on a GPU or on the double of CUDA (cuda_double/): the host waits for earlier work of
// the stream, and for each copy.
#include "comm/staged.hpp"

#include <boost/test/unit_test.hpp>

#include "comm/collective_checks.hpp"
#include "comm/threads/threads.hpp"
#include "support/on_device.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Rank {
  Communicator& host;
  Device& device;
  const std::unique_ptr<Collectives> staged = make_staged(host, device);
  const std::shared_ptr<Stream> stream = device.make_stream(StreamUse::communication), at_once = make_host_stream();
  std::size_t me() const { return static_cast<std::size_t>(host.rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(host.size()); }
};

void on_one_gpu(int size, const std::function<void(Rank&)>& body) {
  run_ranks(size, [&](Communicator& host) {
    const auto device = make_device(Threads::of_gpu, 0);
    Rank rank{host, *device};
    body(rank);
    host.barrier();
  });
}

/// Runs `on` on host numbers and on GPU numbers, which earlier work of the stream writes. `on` gets a stream, the numbers, and
/// a second array of the same size, which it may read and write.
template <class T>
void require_same_of_late_numbers(Rank& rank, std::size_t n, const std::string& what,
                                  const std::function<void(Collectives&, Stream&, T*, T*)>& on) {
  std::vector<T> values = elements<T>(rank.host.rank(), n), others = elements<T>(rank.host.rank() + 10, n);
  constexpr std::size_t busy_bytes = std::size_t{1} << 20;
  const Buffer pinned = rank.device.allocate_staging(2 * n * sizeof(T)), from = rank.device.allocate(busy_bytes),
               to = rank.device.allocate(busy_bytes);
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(pinned.data()));
  std::copy(others.begin(), others.end(), reinterpret_cast<T*>(pinned.data()) + n);
  OnDevice<T> there(rank.device, *rank.stream, std::vector<T>(2 * n));
  on_stream(*rank.stream, [&] {
    for (int i = 0; i < 30; ++i) rank.stream->copy(to.data(), from.data(), busy_bytes);
    rank.stream->copy(there.data(), pinned.data(), pinned.bytes());
    on(*rank.staged, *rank.stream, there.data(), there.data() + n);
  });
  on(rank.host, *rank.at_once, values.data(), others.data());
  values.insert(values.end(), others.begin(), others.end());
  const std::vector<T>& found = there.fetch();
  for (std::size_t i = 0; i < values.size(); ++i) require_same_bits(found[i], values[i], what, i);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_collective_takes_what_its_stream_was_given_before) {
  on_one_gpu(3, [](Rank& rank) {
    const std::size_t count = 1003, n = rank.ranks() * count, mine = rank.me() * count;
    require_same_of_late_numbers<float>(rank, n, "all-gather", [=](Collectives& on, Stream& stream, float* whole, float*) {
      on.all_gather(stream, whole + mine, whole, count, DType::f32);
    });
    for (const Into into : {Into::overwrite, Into::add})
      require_same_of_late_numbers<float>(rank, n, into == Into::add ? "reduce-scatter, added" : "reduce-scatter",
                                          [=](Collectives& on, Stream& stream, float* whole, float* shard) {
                                            on.reduce_scatter(stream, whole, shard, count, into, DType::f32);
                                            stream.copy(whole, shard, n * sizeof(float));  // the remaining content is
                                                                                           // unspecified
                                          });
    require_same_of_late_numbers<float>(rank, n, "all-reduce", [=](Collectives& on, Stream& stream, float* data, float*) {
      on.all_reduce(stream, data, n, DType::f32);
    });
    require_same_of_late_numbers<double>(
        rank, n, "all-reduce", [=](Collectives& on, Stream& stream, double* data, double*) { on.all_reduce(stream, data, n); });
    require_same_of_late_numbers<std::int64_t>(
        rank, n, "all-reduce",
        [=](Collectives& on, Stream& stream, std::int64_t* data, std::int64_t*) { on.all_reduce(stream, data, n); });
  });
}

// Each collective has more numbers than the one before and therefore releases the staging memory, which the previous one must
// have copied completely.
BOOST_AUTO_TEST_CASE(a_collective_that_needs_more_staging_does_not_take_it_from_the_one_before) {
  constexpr std::size_t step = std::size_t{1} << 18, rounds = 6;
  on_one_gpu(2, [](Rank& rank) {
    const Buffer whole = rank.device.allocate(2 * rounds * step * sizeof(float)),
                 shard = rank.device.allocate(rounds * step * sizeof(float));
    auto *const numbers = reinterpret_cast<float*>(whole.data()), *const part = reinterpret_cast<float*>(shard.data());
    const std::function<void(Collectives&, std::size_t)> collectives[] = {
        [&](Collectives& on, std::size_t n) { on.all_gather(*rank.stream, part, numbers, n, DType::f32); },
        [&](Collectives& on, std::size_t n) { on.reduce_scatter(*rank.stream, numbers, part, n, Into::overwrite, DType::f32); },
        [&](Collectives& on, std::size_t n) { on.all_reduce(*rank.stream, numbers, n, DType::f32); }};
    for (const auto& collective : collectives) {
      const auto staged = make_staged(rank.host, rank.device);
      on_stream(*rank.stream, [&] {
        for (std::size_t round = 1; round <= rounds; ++round) collective(*staged, round * step);
      });
    }
  });
}
