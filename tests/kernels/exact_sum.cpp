// The exact sum of squares: its bits must not depend on partition, order or threads, and it must be right.
#include "kernels/exact_sum.hpp"

#include <omp.h>
#include <cfloat>

#include <algorithm>
#include <cstring>
#include <random>

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::ExactSum;

namespace {

double whole_value(const Floats& x) {
  CpuStream stream;
  ExactSum sum;
  kernels::add_squares(stream, sum, x.data(), x.size());
  return sum.value();
}

/// Cuts x at random places, adds the parts like `ranks` ranks, with several parts per rank, and adds the ranks' sums as
/// integers.
double parted_value(const Floats& x, std::size_t ranks, std::mt19937& random) {
  CpuStream stream;
  std::vector<ExactSum> sums(ranks);
  for (std::size_t begin = 0; begin < x.size();) {
    const std::size_t most = random() % 3 == 0 ? 10 : x.size();
    const std::size_t count = std::min<std::size_t>(x.size() - begin, 1 + random() % most);
    kernels::add_squares(stream, sums[random() % ranks], x.data() + begin, count);
    begin += count;
  }
  std::vector<std::int64_t> total(ExactSum::words), row(ExactSum::words);
  for (const ExactSum& sum : sums) {
    std::memcpy(row.data(), &sum, sizeof sum);
    for (std::size_t i = 0; i < row.size(); ++i) total[i] += row[i];
  }
  ExactSum all;
  std::memcpy(static_cast<void*>(&all), total.data(), sizeof all);
  return all.value();
}

#if LDBL_MANT_DIG == 113
using Quadruple = long double;
#else
using Quadruple = __float128;
#endif

double reference(const Floats& x) {
  Quadruple total = 0;
  for (const float value : x) total += static_cast<Quadruple>(value) * value;
  return static_cast<double>(total);
}

/// Values whose exponents are spread over 2^-low .. 2^high.
Floats spread(std::size_t n, std::uint32_t seed, int low, int high) {
  Floats x = random_floats(n, seed);
  for (std::size_t i = 0; i < n; ++i) {
    const auto word = philox({static_cast<std::uint32_t>(i), 1, 0, 0}, {seed, 0})[0];
    x[i] = std::ldexp(x[i], low + static_cast<int>(word % static_cast<std::uint32_t>(high - low + 1)));
  }
  return x;
}

}  // namespace

BOOST_AUTO_TEST_CASE(any_partition_and_order_gives_the_same_bits) {
  std::mt19937 random(1);
  const std::vector<Floats> cases = {random_floats(20000, 1, 1e-3f),
                                     spread(20000, 2, -100, 100),   // 1e-30 .. 1e30
                                     spread(20000, 3, -149, -120),  // denormals
                                     spread(20000, 4, -149, 127),
                                     spread(4097, 5, -20, 20),
                                     Floats(10000, 16777215.0f),  // 24-bit significands: squares of 48 bits across digits
                                     Floats(3, std::numeric_limits<float>::max()),
                                     Floats(5, std::numeric_limits<float>::denorm_min())};
  for (Floats x : cases) {
    const double value = whole_value(x);
    const double exact = reference(x);
    BOOST_TEST(std::abs(value - exact) <= 2e-16 * exact, "value " << value << ", reference " << exact);
    for (std::size_t ranks : {1, 2, 3, 4, 7})
      for (int repeat = 0; repeat < 4; ++repeat) {
        BOOST_REQUIRE_EQUAL(parted_value(x, ranks, random), value);
        std::shuffle(x.begin(), x.end(), random);
      }
  }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
  const Floats x = spread(300000, 6, -60, 10);
  omp_set_num_threads(1);
  const double one = whole_value(x);
  omp_set_num_threads(3);
  const double three = whole_value(x);
  omp_set_num_threads(1);
  BOOST_TEST(one == three);
}

BOOST_AUTO_TEST_CASE(small_cases_by_hand) {
  CpuStream stream;
  BOOST_TEST(whole_value({}) == 0.0);
  BOOST_TEST(whole_value({0.0f, -0.0f}) == 0.0);
  BOOST_TEST(whole_value({3.0f, -4.0f}) == 25.0);
  BOOST_TEST(whole_value({0x1p-149f}) == 0x1p-298);
  BOOST_TEST(whole_value({0x1p127f, 0x1p127f}) == 0x1p255);
  const Floats huge(4, std::numeric_limits<float>::max());
  BOOST_TEST(whole_value(huge) == reference(huge));
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_is_counted) {
  CpuStream stream;
  Floats x(100, 1.0f);
  x[3] = std::numeric_limits<float>::infinity();
  x[70] = std::numeric_limits<float>::quiet_NaN();
  x[99] = -std::numeric_limits<float>::infinity();
  ExactSum sum;
  kernels::add_squares(stream, sum, x.data(), x.size());
  BOOST_TEST(sum.non_finite == 3);
  BOOST_TEST(std::isnan(sum.value()));
  sum.non_finite = 0;
  BOOST_TEST(sum.value() == 97.0);
}

BOOST_AUTO_TEST_CASE(many_ranks_do_not_overflow) {
  // A sum doubled 40 times has 2^40 times as many elements; a single digit would overflow at 2^31.
  CpuStream stream;
  const Floats x = {1.9999999f, 1e-3f, 7e-7f};
  ExactSum sum;
  kernels::add_squares(stream, sum, x.data(), x.size());
  const double once = sum.value();
  for (int i = 0; i < 40; ++i) sum += ExactSum(sum);
  BOOST_TEST(sum.value() == once * 0x1p40);
}
