// The double's tensor cores and asynchronous copies: products have PTX's layout, a wait or a barrier that is left out gives
// wrong results, and warps that do not come together end the process.
#include "kernels/cuda/tensor_core.hpp"

#include <tuple>

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;
using namespace fsdp::kernels;

namespace {

/// Where a lane's numbers lie, as PTX writes it down: groupID and threadID_in_group.
unsigned group() { return threadIdx.x % 32 >> 2; }
unsigned in_group() { return threadIdx.x % 32 % 4; }

/// out[16,8] = out + a[16,16] b[16,8], for each warp.
template <class E>
struct Multiply {
  float* out;
  const E *a, *b;
  __device__ void operator()() const {
    float* const sum = out + threadIdx.x / 32 * 128;
    const E *const left = a + threadIdx.x / 32 * 256, *const right = b + threadIdx.x / 32 * 128;
    const auto two = [](E low, E high) { return low.bits | static_cast<std::uint32_t>(high.bits) << 16; };
    LeftFragment l;
    RightFragment r;
    SumFragment s;
    for (unsigned i = 0; i < 8; i += 2) {
      const unsigned row = (i < 2) || (i >= 4 && i < 6) ? group() : group() + 8, column = in_group() * 2 + (i < 4 ? 0 : 8);
      l.part[i / 2] = two(left[row * 16 + column], left[row * 16 + column + 1]);
    }
    for (unsigned i = 0; i < 4; i += 2) {
      const unsigned row = in_group() * 2 + (i < 2 ? 0 : 8), column = group();
      r.part[i / 2] = two(right[row * 8 + column], right[(row + 1) * 8 + column]);
    }
    const auto place = [](unsigned i) { return (i < 2 ? group() : group() + 8) * 8 + in_group() * 2 + (i & 1); };
    for (unsigned i = 0; i < 4; ++i) s.part[i] = sum[place(i)];
    mma<E>(s, l, r);
    for (unsigned i = 0; i < 4; ++i) sum[place(i)] = s.part[i];
  }
};

/// What ldmatrix reads of rows 24 numbers apart; lane 8 i + r names row r of matrix i, which begins in row 8 (i % 2), column
/// 8 (i / 2).
struct Load {
  std::uint32_t *plain, *transposed;
  const std::uint16_t* from;
  __device__ void operator()() const {
    auto* const shared = reinterpret_cast<std::uint16_t*>(dynamic_shared());
    for (unsigned i = threadIdx.x; i < 16 * 24; i += blockDim.x) shared[i] = from[i];
    __syncthreads();
    const unsigned lane = threadIdx.x, i = lane / 8;
    const auto* const row = shared + (8 * (i % 2) + lane % 8) * 24 + 8 * (i / 2);
    const FourParts one = ldmatrix(row), other = ldmatrix_transposed(row);
    for (unsigned part = 0; part < 4; ++part) {
      plain[part * 32 + lane] = one.part[part];
      transposed[part * 32 + lane] = other.part[part];
    }
  }
};

/// to[i] = from[i], through shared memory and in two groups; each lane gives what another one has copied.
enum class LeftOut { nothing, wait, barrier, half_of_wait };
template <LeftOut left_out>
struct CopyAll {
  float* to;
  const float* from;
  __device__ void operator()() const {
    auto* const shared = reinterpret_cast<float*>(dynamic_shared());
    const unsigned i = threadIdx.x, n = blockDim.x;
    copy_async<16>(shared + 4 * i, from + 4 * i, true);
    commit_copies();
    copy_async<4>(shared + 4 * n + i, from + 4 * n + i, i % 2 == 0);
    commit_copies();
    if constexpr (left_out == LeftOut::half_of_wait)
      wait_copies<1>();
    else if constexpr (left_out != LeftOut::wait)
      wait_copies<0>();
    if constexpr (left_out != LeftOut::barrier) __syncthreads();
    for (unsigned k = 0; k < 5; ++k) {
      const unsigned other = (i * 37 + 11) % n;
      to[k * n + other] = shared[k * n + other];
    }
  }
};

/// The same four numbers of shared memory are read and then filled anew, four times.
template <bool with_barrier>
struct FillAgain {
  float* to;
  const float* from;
  __device__ void operator()() const {
    auto* const shared = reinterpret_cast<float*>(dynamic_shared());
    for (unsigned round = 0; round < 4; ++round) {
      if (threadIdx.x == 0) copy_async<16>(shared, from + 4 * round, true);
      commit_copies();
      wait_copies<0>();
      __syncthreads();
      to[round * blockDim.x + threadIdx.x] = shared[threadIdx.x % 4];
      if constexpr (with_barrier) __syncthreads();
    }
  }
};

/// Reads four equal matrices whose rows begin `step` bytes apart.
struct LoadRows {
  unsigned step;
  __device__ void operator()() const { ldmatrix(dynamic_shared() + threadIdx.x % 8 * step); }
};

// Blocks that are wrong.
struct LaneMissesProduct {
  __device__ void operator()() const {
    SumFragment sum;
    if (threadIdx.x != 9) mma<bf16>(sum, {}, {});
  }
};
struct TwoProducts {
  __device__ void operator()() const {
    SumFragment sum;
    if (threadIdx.x % 2 == 0)
      mma<bf16>(sum, {}, {});
    else
      mma<bf16>(sum, {}, {});
  }
};
struct ProductAgainstLdmatrix {
  __device__ void operator()() const {
    SumFragment sum;
    if (threadIdx.x == 31)
      ldmatrix(dynamic_shared());
    else
      mma<f16>(sum, {}, {});
  }
};
struct HalfWarp {
  __device__ void operator()() const { ldmatrix_transposed(dynamic_shared()); }
};
struct UnalignedRow {
  __device__ void operator()() const { ldmatrix(dynamic_shared() + 8); }
};
struct UnalignedCopy {
  const float* from;
  __device__ void operator()() const { copy_async<16>(dynamic_shared(), from + 1, true); }
};

}  // namespace

using Types = std::tuple<bf16, f16>;
BOOST_AUTO_TEST_CASE_TEMPLATE(products, E, Types) {  // of small integers, whose sums are exact
  constexpr std::size_t warps = 3;
  std::vector<E> a, b;
  std::vector<float> start, want;
  for (std::size_t i = 0; i < warps * 256; ++i) a.push_back(E(static_cast<float>(i * 7 % 23) - 11));
  for (std::size_t i = 0; i < warps * 128; ++i) b.push_back(E(static_cast<float>(i * 5 % 19) - 9));
  for (std::size_t i = 0; i < warps * 128; ++i) start.push_back(static_cast<float>(i));
  for (std::size_t i = 0; i < warps * 128; ++i) {
    const std::size_t warp = i / 128, row = i % 128 / 8, column = i % 8;
    float sum = start[i];
    for (std::size_t k = 0; k < 16; ++k) sum += a[warp * 256 + row * 16 + k] * b[warp * 128 + k * 8 + column];
    want.push_back(sum);
  }
  const DeviceArray<E> left(a), right(b);
  for (unsigned seed = 0; seed < 5; ++seed) {
    const TestStream stream(seed);
    const DeviceArray<float> out(start);
    check(launch_kernel(stream, 1, warps * 32, 0, Multiply<E>{out.data(), left.data(), right.data()}));
    BOOST_TEST(out.fetch() == want, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(matrices_are_loaded) {
  const TestStream stream(1);
  std::vector<std::uint16_t> x(16 * 24);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i);
  const DeviceArray<std::uint16_t> from(x);
  const DeviceArray<std::uint32_t> plain(128), transposed(128);
  check(launch_kernel(stream, 1, 32, 1024, Load{plain.data(), transposed.data(), from.data()}));
  const std::vector<std::uint32_t> p = plain.fetch(), t = transposed.fetch();
  for (std::uint32_t part = 0; part < 4; ++part)
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      const auto at = [&](std::uint32_t row, std::uint32_t column) {
        return (8 * (part % 2) + row) * 24 + 8 * (part / 2) + column;
      };
      const std::uint32_t g = lane / 4, two = lane % 4 * 2;
      BOOST_REQUIRE_EQUAL(p[part * 32 + lane], at(g, two) | at(g, two + 1) << 16);
      BOOST_REQUIRE_EQUAL(t[part * 32 + lane], at(two, g) | at(two + 1, g) << 16);
    }
}

BOOST_AUTO_TEST_CASE(bank_conflicts_are_counted) {
  for (const auto& [step, matrices] : {std::pair{0u, 0u}, {16u, 0u}, {32u, 4u}, {128u, 4u}, {144u, 0u}}) {
    const std::uint64_t before = cuda_double::bank_conflicts();
    check(launch_kernel(nullptr, 1, 32, 2048, LoadRows{step}));
    check(cudaDeviceSynchronize());
    BOOST_TEST(cuda_double::bank_conflicts() - before == matrices, step << " bytes");
  }
}

namespace {

constexpr unsigned threads = 64;

template <LeftOut left_out>
std::vector<float> copied(unsigned seed) {
  const TestStream stream(seed);
  std::vector<float> x(5 * threads);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  const DeviceArray<float> from(x), to(std::vector<float>(x.size(), -1.0f));
  check(launch_kernel(stream, 1, threads, 5 * threads * sizeof(float), CopyAll<left_out>{to.data(), from.data()}));
  return to.fetch();
}

}  // namespace

BOOST_AUTO_TEST_CASE(copies_come_with_the_wait) {
  std::vector<float> want(5 * threads);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = i >= 4 * threads && i % 2 == 1 ? 0 : static_cast<float>(i + 1);
  int without_barrier = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    BOOST_TEST(copied<LeftOut::nothing>(seed) == want, boost::test_tools::per_element());
    for (const float value : copied<LeftOut::wait>(seed)) BOOST_REQUIRE(std::isnan(value));
    const std::vector<float> first_group = copied<LeftOut::half_of_wait>(seed);
    for (std::size_t i = 0; i < want.size(); ++i)
      BOOST_REQUIRE(i < 4 * threads ? first_group[i] == want[i] : std::isnan(first_group[i]));
    without_barrier += copied<LeftOut::barrier>(seed) != want;
  }
  BOOST_TEST_MESSAGE("without its barrier, the kernel is wrong with " << without_barrier << " of 40 seeds");
  BOOST_TEST(without_barrier >= 35);
}

BOOST_AUTO_TEST_CASE(a_copy_that_begins_too_early_is_found) {
  std::vector<float> x(16), want;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  for (std::size_t i = 0; i < 4 * threads; ++i) want.push_back(x[i / threads * 4 + i % 4]);
  const DeviceArray<float> from(x);
  int wrong = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const TestStream stream(seed);
    const DeviceArray<float> with(want.size()), without(want.size());
    check(launch_kernel(stream, 1, threads, 16, FillAgain<true>{with.data(), from.data()}));
    check(launch_kernel(stream, 1, threads, 16, FillAgain<false>{without.data(), from.data()}));
    BOOST_TEST(with.fetch() == want, boost::test_tools::per_element());
    wrong += without.fetch() != want;
  }
  BOOST_TEST_MESSAGE("where it begins too early, the kernel is wrong with " << wrong << " of 40 seeds");
  BOOST_TEST(wrong >= 35);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(packed_numbers, E, Types) {
  for (const float x : {0.0f, 1.0f, -3.1415926f, 1e-3f, 70000.0f, 1e-9f}) {
    const std::uint32_t both = pack<E>(x, -x);
    BOOST_TEST((both & 0xffffu) == E(x).bits);
    BOOST_TEST((both >> 16) == E(-x).bits);
  }
}

// --- What ends a process. The cases of the first suite run in children. ---

BOOST_AUTO_TEST_SUITE(child, *boost::unit_test::disabled())
BOOST_AUTO_TEST_CASE(lane_misses_product) { run_wrong(LaneMissesProduct{}); }
BOOST_AUTO_TEST_CASE(two_products) { run_wrong(TwoProducts{}); }
BOOST_AUTO_TEST_CASE(product_against_ldmatrix) { run_wrong(ProductAgainstLdmatrix{}); }
BOOST_AUTO_TEST_CASE(half_warp) { run_wrong(HalfWarp{}, 16); }
BOOST_AUTO_TEST_CASE(unaligned_row) { run_wrong(UnalignedRow{}); }
BOOST_AUTO_TEST_CASE(unaligned_copy) {
  const DeviceArray<float> from(64);
  run_wrong(UnalignedCopy{from.data()});
}
BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(wrong_blocks_end_the_process) {
  block_dies("lane_misses_product", "LaneMissesProduct", "and lane 9 has returned");
  block_dies("two_products", "TwoProducts", "waits in mma at ");
  block_dies("product_against_ldmatrix", "ProductAgainstLdmatrix", "waits in ldmatrix at ");
  block_dies("half_warp", "HalfWarp", "is one that the block does not have");
  block_dies("unaligned_row", "UnalignedRow", "no multiple of 16");
  block_dies("unaligned_copy", "UnalignedCopy", "no multiple of its bytes");
}
