// The double's lanes: barriers, exchanges within a warp, shared memory, and faulty blocks.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// y[i] = x[threads - 1 - i], through shared memory.
template <bool with_barrier>
struct Reverse {
  int* y;
  const int* x;
  __device__ void operator()() const {
    __shared__ int part[256];
    const unsigned i = threadIdx.x;
    part[i] = x[i];
    if constexpr (with_barrier) __syncthreads();
    y[i] = part[blockDim.x - 1 - i];
  }
};

/// The order in which lanes of all blocks have come, and how often each has.
struct Come {
  unsigned *count, *order, *times;
  __device__ void operator()() const {
    const unsigned lane = blockIdx.x * blockDim.x + threadIdx.x;
    order[atomicAdd(count, 1u)] = lane;
    atomicAdd(times + lane, 1u);
  }
};

template <class T>
struct Shuffles {
  T *by_xor, *by_source, *by_delta;
  int argument, width;
  __device__ void operator()() const {
    const unsigned i = threadIdx.x;
    const T mine = static_cast<T>(1.25 * i + 3);
    by_xor[i] = __shfl_xor_sync(0xffffffffu, mine, argument, width);
    by_source[i] = __shfl_sync(0xffffffffu, mine, argument, width);
    by_delta[i] = __shfl_down_sync(0xffffffffu, mine, static_cast<unsigned>(argument), width);
  }
};

/// The two halves of each warp add up their lanes' numbers, the second one three times as often as the first one.
struct Halves {
  int* sums;
  __device__ void operator()() const {
    const bool upper = threadIdx.x % 32 >= 16;
    const unsigned mask = upper ? 0xffff0000u : 0x0000ffffu;
    int value = static_cast<int>(threadIdx.x);
    for (int round = 0; round < (upper ? 3 : 1); ++round) {
      for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset);
      __syncwarp(mask);
    }
    sums[threadIdx.x] = value;
  }
};

struct Votes {
  unsigned *ballot, *any, *all;
  __device__ void operator()() const {
    const unsigned i = threadIdx.x;
    ballot[i] = __ballot_sync(0xffffffffu, i % 3 == 0);
    any[i] = static_cast<unsigned>(__any_sync(0xffffffffu, i == 40));
    all[i] = static_cast<unsigned>(__all_sync(0xffffffffu, i < 50));
  }
};

/// Each block fills its dynamic shared memory, and adds up what all lanes have put there.
struct Dynamic {
  unsigned long long *sums, *poisoned;
  std::size_t bytes;
  __device__ void operator()() const {
    std::byte* shared = dynamic_shared();
    if (threadIdx.x == 0) {
      bool all = reinterpret_cast<std::uintptr_t>(shared) % 128 == 0;
      for (std::size_t i = 0; i < bytes; ++i) all = all && shared[i] == std::byte{0xff};
      atomicAdd(poisoned, all ? 1ull : 0ull);
    }
    __syncthreads();
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) shared[i] = static_cast<std::byte>(i + blockIdx.x);
    __syncthreads();
    unsigned long long sum = 0;
    for (std::size_t i = 0; i < bytes; ++i) sum += static_cast<unsigned long long>(shared[i]);
    if (threadIdx.x == 5) sums[blockIdx.x] = sum;
  }
};

/// Waits for a flag that another stream's kernel sets.
struct Spin {
  unsigned* flag;
  __device__ void operator()() const {
    while (atomicAdd(flag, 0u) == 0) {
    }
  }
};
struct Set {
  unsigned* flag;
  __device__ void operator()() const { atomicAdd(flag, 1u); }
};

// Blocks that are wrong.
struct LaneReturnsEarly {
  __device__ void operator()() const {
    if (threadIdx.x == 3) return;
    __syncthreads();
  }
};
struct TwoBarriers {
  __device__ void operator()() const {
    if (threadIdx.x % 2 == 0)
      __syncthreads();
    else
      __syncthreads();
  }
};
struct LaneMissesShuffle {
  __device__ void operator()() const {
    if (threadIdx.x != 7) __shfl_xor_sync(0xffffffffu, 1, 1);
  }
};
struct WarpIsNotWhole {
  __device__ void operator()() const { __syncwarp(); }
};
struct MaskWithoutItself {
  __device__ void operator()() const { __shfl_sync(0xfffeu, 1, 1); }
};
struct SourceOutsideMask {
  __device__ void operator()() const {
    if (threadIdx.x < 4) __shfl_sync(0xfu, 1, 9);
  }
};
struct ShuffleAgainstBarrier {
  __device__ void operator()() const {
    if (threadIdx.x < 32) __syncwarp();
    if (threadIdx.x == 40)
      __syncwarp();
    else
      __syncthreads();
  }
};
struct BeyondShared {
  __device__ void operator()() const { dynamic_shared()[1024] = std::byte{1}; }
};

struct Deep {  // most of a lane's stack
  unsigned* to;
  __device__ void operator()() const {
    volatile char room[40 * 1024];
    room[threadIdx.x] = static_cast<char>(threadIdx.x);
    __syncthreads();
    atomicAdd(to, static_cast<unsigned>(room[threadIdx.x] == static_cast<char>(threadIdx.x)));
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_missing_barrier_is_found) {
  std::vector<int> x(256);
  std::iota(x.begin(), x.end(), 1);
  const std::vector<int> want(x.rbegin(), x.rend());
  const DeviceArray<int> from(x);
  int wrong = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const TestStream stream(seed);
    const DeviceArray<int> with(256), without(256);
    check(launch_kernel(stream, 1, 256, 0, Reverse<true>{with.data(), from.data()}));
    check(launch_kernel(stream, 1, 256, 0, Reverse<false>{without.data(), from.data()}));
    BOOST_TEST((with.fetch() == want));
    wrong += without.fetch() != want;
  }
  BOOST_TEST_MESSAGE("without its barrier, the kernel is wrong with " << wrong << " of 40 seeds");
  BOOST_TEST(wrong >= 35);
}

BOOST_AUTO_TEST_CASE(every_lane_comes_once_in_random_order) {
  constexpr unsigned blocks = 7, threads = 96, n = blocks * threads;
  std::vector<std::vector<unsigned>> orders;
  for (const unsigned seed : {1u, 1u, 2u}) {
    const TestStream stream(seed);
    const DeviceArray<unsigned> count({0}), order(n), times(std::vector<unsigned>(n, 0));
    check(launch_kernel(stream, blocks, threads, 0, Come{count.data(), order.data(), times.data()}));
    BOOST_TEST((times.fetch() == std::vector<unsigned>(n, 1)));
    orders.push_back(order.fetch());
    BOOST_TEST(!std::is_sorted(orders.back().begin(), orders.back().end()));
  }
  BOOST_TEST((orders[0] != orders[2]));
}

using ShuffledTypes = std::tuple<int, float, double, unsigned long long, std::int64_t>;
BOOST_AUTO_TEST_CASE_TEMPLATE(shuffles, T, ShuffledTypes) {
  const TestStream stream(3);
  for (const int width : {32, 16, 8})
    for (const int argument : {0, 1, 5, 7}) {
      const DeviceArray<T> by_xor(64), by_source(64), by_delta(64);
      check(launch_kernel(stream, 1, 64, 0, Shuffles<T>{by_xor.data(), by_source.data(), by_delta.data(), argument, width}));
      const std::vector<T> x = by_xor.fetch(), s = by_source.fetch(), d = by_delta.fetch();
      for (int i = 0; i < 64; ++i) {
        const auto value = [](int lane) { return static_cast<T>(1.25 * lane + 3); };
        const int group = i / width * width;
        BOOST_REQUIRE(x[static_cast<std::size_t>(i)] == value(i ^ argument));
        BOOST_REQUIRE(s[static_cast<std::size_t>(i)] == value(group + argument));
        BOOST_REQUIRE(d[static_cast<std::size_t>(i)] == value(i + argument < group + width ? i + argument : i));
      }
    }
}

BOOST_AUTO_TEST_CASE(parts_of_a_warp_go_their_own_way) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    const TestStream stream(seed);
    const DeviceArray<int> sums(64);
    check(launch_kernel(stream, 1, 64, 0, Halves{sums.data()}));
    const std::vector<int> got = sums.fetch();
    for (int i = 0; i < 64; ++i) {
      const int begin = i / 16 * 16, once = 16 * begin + 120;  // begin + (begin + 1) + ...
      BOOST_REQUIRE(got[static_cast<std::size_t>(i)] == (i % 32 < 16 ? once : once * 256));
    }
  }
}

BOOST_AUTO_TEST_CASE(votes) {
  const TestStream stream;
  const DeviceArray<unsigned> ballot(64), any(64), all(64);
  check(launch_kernel(stream, 1, 64, 0, Votes{ballot.data(), any.data(), all.data()}));
  unsigned want[2] = {};
  for (unsigned i = 0; i < 64; i += 3) want[i / 32] |= 1u << i % 32;
  for (unsigned i = 0; i < 64; ++i) {
    BOOST_REQUIRE(ballot.fetch()[i] == want[i / 32]);
    BOOST_REQUIRE(any.fetch()[i] == (i < 32 ? 0u : 1u));
    BOOST_REQUIRE(all.fetch()[i] == (i < 32 ? 1u : 0u));
  }
}

BOOST_AUTO_TEST_CASE(dynamic_shared_memory) {
  const TestStream stream;
  for (const std::size_t bytes : {std::size_t{1000}, std::size_t{100 * 1024}}) {
    const DeviceArray<unsigned long long> sums(5), poisoned({0});
    check(launch_kernel(stream, 5, 64, bytes, Dynamic{sums.data(), poisoned.data(), bytes}));
    BOOST_TEST(poisoned.fetch()[0] == 5u);
    for (std::size_t block = 0; block < 5; ++block) {
      unsigned long long want = 0;
      for (std::size_t i = 0; i < bytes; ++i) want += (i + block) % 256;
      BOOST_TEST(sums.fetch()[block] == want);
    }
  }
}

BOOST_AUTO_TEST_CASE(kernels_of_two_streams_run_at_the_same_time) {
  const TestStream first, second;
  const DeviceArray<unsigned> flag({0});
  check(launch_kernel(first, 1, 1, 0, Spin{flag.data()}));
  check(launch_kernel(second, 1, 1, 0, Set{flag.data()}));
  first.wait();
  BOOST_TEST(flag.fetch()[0] == 1u);
}

BOOST_AUTO_TEST_CASE(the_largest_block) {
  const TestStream stream;
  const DeviceArray<unsigned> count({0});
  for (int i = 0; i < 3; ++i) check(launch_kernel(stream, 2, 1024, 0, Deep{count.data()}));
  BOOST_TEST(count.fetch()[0] == 6u * 1024);
}

BOOST_AUTO_TEST_CASE(wrong_launches_are_refused) {
  const Set kernel{nullptr};
  BOOST_TEST(launch_kernel(nullptr, 0, 32, 0, kernel) == cudaErrorInvalidConfiguration);
  BOOST_TEST(launch_kernel(nullptr, 1, 0, 0, kernel) == cudaErrorInvalidConfiguration);
  BOOST_TEST(launch_kernel(nullptr, 1, 1025, 0, kernel) == cudaErrorInvalidConfiguration);
  BOOST_TEST(launch_kernel(nullptr, 1, 32, std::size_t{1} << 20, kernel) == cudaErrorInvalidValue);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
}

// --- What ends a process. The cases of the first suite run in children. ---

BOOST_AUTO_TEST_SUITE(child, *boost::unit_test::disabled())
BOOST_AUTO_TEST_CASE(lane_returns_early) { run_wrong(LaneReturnsEarly{}, 64); }
BOOST_AUTO_TEST_CASE(two_barriers) { run_wrong(TwoBarriers{}, 64); }
BOOST_AUTO_TEST_CASE(lane_misses_shuffle) { run_wrong(LaneMissesShuffle{}, 64); }
BOOST_AUTO_TEST_CASE(warp_is_not_whole) { run_wrong(WarpIsNotWhole{}, 40); }
BOOST_AUTO_TEST_CASE(mask_without_itself) { run_wrong(MaskWithoutItself{}, 1); }
BOOST_AUTO_TEST_CASE(source_outside_mask) { run_wrong(SourceOutsideMask{}); }
BOOST_AUTO_TEST_CASE(shuffle_against_barrier) { run_wrong(ShuffleAgainstBarrier{}, 64); }
BOOST_AUTO_TEST_CASE(beyond_shared) { run_wrong(BeyondShared{}); }
BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(wrong_blocks_end_the_process) {
  block_dies("lane_returns_early", "LaneReturnsEarly", "lane 3 has returned");
  block_dies("two_barriers", "TwoBarriers", "waits in __syncthreads at ");
  block_dies("lane_misses_shuffle", "LaneMissesShuffle", "and lane 7 has returned");
  block_dies("warp_is_not_whole", "WarpIsNotWhole", "is one that the block does not have");
  block_dies("mask_without_itself", "MaskWithoutItself", "does not name the lane itself");
  block_dies("source_outside_mask", "SourceOutsideMask", "asks for the value of lane 9");
  block_dies("shuffle_against_barrier", "ShuffleAgainstBarrier", "__syncthreads");
  dies_by_touching("child/beyond_shared");
}
