// The rounding of 16-bit copies, and initial weights. tests/optim/elementwise.cpp tests the optimizers themselves.
#include "kernels/element_update.hpp"
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::uint16_t upper(float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); }
float as_fp32(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

/// Returns the bits of the nearest fp16 number, computed in double: not every compiler has a type for it.
std::uint16_t nearest_f16(float x) {
  const double size = std::abs(static_cast<double>(x));
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const double bits = std::nearbyint(std::ldexp(size, 10 - exponent)) + 1024.0 * (exponent + 14);
  return static_cast<std::uint16_t>(std::min(bits, 31744.0) + (std::signbit(x) ? 32768 : 0));
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_copy_is_rounded_to_the_nearest_even) {
  CpuStream stream;
  // With a rate of 0 parameters do not change: halfway cases of both types, the ends of fp16's range, small ones.
  Floats p = {1.0f,          1.00390625f,   1.01171875f,   -1.00390625f,   65504.0f,       65519.0f,
              65520.0f,      -1e6f,         3e38f,         1.00048828125f, 1.00146484375f, 6.1035156e-5f,
              5.9604645e-8f, 2.9802322e-8f, 2.9802326e-8f, 8.9406967e-8f,  0.0f,           -0.0f};
  for (const float x : random_floats(9000, 3, 4.0f)) p.push_back(x);
  const Floats g(p.size());
  for (const DType type : {DType::bf16, DType::f16}) {
    std::vector<std::uint16_t> copy(p.size());
    const kernels::UpdateTarget target = {
        .parameter = p.data(), .gradient = g.data(), .n = p.size(), .copy = {copy.data(), type}};
    kernels::update_elements(stream, target, kernels::SgdRule{.decay = 1, .l2 = 0, .learning_rate = 0});
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (type == DType::f16) {
        BOOST_TEST_REQUIRE(copy[i] == nearest_f16(p[i]), p[i]);
        continue;
      }
      const std::uint16_t below = upper(p[i]), above = static_cast<std::uint16_t>(below + 1);  // in magnitude
      const double to_below = std::abs(static_cast<double>(p[i]) - as_fp32(below)),
                   to_above = std::abs(static_cast<double>(as_fp32(above)) - p[i]);
      const std::uint16_t nearest = to_below < to_above ? below : to_above < to_below ? above : below % 2 == 0 ? below : above;
      BOOST_TEST_REQUIRE(copy[i] == nearest, p[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_average_moves_only_with_an_update_that_counts) {
  CpuStream stream;
  const Floats values = random_floats(5003, 1, 4.0f), start = random_floats(5003, 2, 4.0f);
  Floats average = start;
  const kernels::GradientNorm skipped = {.finite = 0}, done = {.scale = 0.5};  // the scale is for gradients
  kernels::move_average(stream, average.data(), values.data(), values.size(), 0.75, skipped);
  BOOST_TEST((average == start));
  kernels::move_average(stream, average.data(), values.data(), values.size(), 0.75, done);
  for (std::size_t i = 0; i < values.size(); ++i) BOOST_REQUIRE_SMALL(average[i] - (0.75 * start[i] + 0.25 * values[i]), 1e-6);
  kernels::move_average(stream, average.data(), values.data(), values.size(), 0, done);
  BOOST_TEST((average == values));
  // At its limit the average stays, however small 1 - decay is.
  kernels::move_average(stream, average.data(), values.data(), values.size(), 0.9999, done);
  BOOST_TEST((average == values));
}

BOOST_AUTO_TEST_CASE(any_part_of_a_tensor_has_the_same_bits) {
  CpuStream stream;
  const std::size_t n = 5003, offset = 3;
  Floats whole(n);
  kernels::fill_normal(stream, whole.data(), n, offset, 7, 3, 0.5f, 0.02f);
  for (std::size_t begin : {0, 1, 2, 3, 1021, 4999})
    for (std::size_t count : {1, 2, 3, 4, 5, 1500}) {
      count = std::min(count, n - begin);
      Floats part(count + 1, 99.0f);
      kernels::fill_normal(stream, part.data(), count, offset + begin, 7, 3, 0.5f, 0.02f);
      for (std::size_t i = 0; i < count; ++i) BOOST_REQUIRE_EQUAL(part[i], whole[begin + i]);
      BOOST_REQUIRE_EQUAL(part[count], 99.0f);
    }
  Floats other(n);
  kernels::fill_normal(stream, other.data(), n, offset, 7, 4, 0.5f, 0.02f);
  BOOST_TEST((other != whole));
}

BOOST_AUTO_TEST_CASE(normal_numbers_are_box_and_muller_on_philox) {
  CpuStream stream;
  const std::size_t n = 4000, begin = (std::size_t{1} << 34) + 4;  // a counter beyond 32 bits
  Floats z(n);
  kernels::fill_normal(stream, z.data(), n, begin, 11, 5, 0.0f, 1.0f);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t counter = (begin + i) / 4;
    const auto words = philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}, {11, 5});
    const std::size_t pair = (begin + i) % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((static_cast<double>(words[pair] >> 1) + 0.25) * 0x1p-31));
    const double angle = static_cast<double>(words[pair + 1]) * 0x1p-31 * M_PI;
    // Single precision; near radius 0 the uniform number's own rounding to 24 bits shows: sqrt(2 * 6e-8) = 3e-4.
    BOOST_REQUIRE_SMALL(z[i] - radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)), radius > 0.05 ? 3e-6 : 4e-4);
  }
}

BOOST_AUTO_TEST_CASE(uniform_numbers_are_words_of_philox) {
  CpuStream stream;
  const std::size_t n = 4001, begin = (std::size_t{1} << 34) + 3;
  Floats z(n), part(7);
  kernels::fill_uniform(stream, z.data(), n, begin, 11, 5, 0.5f);
  double mean = 0, square = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t counter = (begin + i) / 4;
    const auto words = philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}, {11, 5});
    BOOST_REQUIRE_EQUAL(z[i], 0.5f * (static_cast<float>(static_cast<std::int32_t>(words[(begin + i) % 4])) * 0x1p-31f));
    mean += z[i] / n, square += z[i] * z[i] / n;
  }
  BOOST_TEST(std::abs(mean) < 5 * 0.5 / std::sqrt(3.0 * n));
  BOOST_TEST(square == 0.25 / 3, boost::test_tools::tolerance(0.08));  // five deviations, sqrt(4 / 5 n)
  kernels::fill_uniform(stream, part.data(), part.size(), begin + 1021, 11, 5, 0.5f);
  for (std::size_t i = 0; i < part.size(); ++i) BOOST_TEST(part[i] == z[1021 + i]);
}

BOOST_AUTO_TEST_CASE(moments) {
  CpuStream stream;
  const std::size_t n = 1 << 20;
  Floats x(n);
  kernels::fill_normal(stream, x.data(), n, 0, 1, 2, 0.0f, 1.0f);
  double first = 0, second = 0, fourth = 0, neighbours = 0, largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double z = x[i];
    first += z / n, second += z * z / n, fourth += z * z * z * z / n;
    neighbours += z * static_cast<double>(x[(i + 1) % n]) / n;
    largest = std::max(largest, std::abs(z));
  }
  // Five standard deviations of each estimate: sqrt(1/n), sqrt(2/n), sqrt(96/n).
  BOOST_TEST(std::abs(first) < 5e-3);
  BOOST_TEST(std::abs(neighbours) < 5e-3);
  BOOST_TEST(std::abs(second - 1) < 7e-3);
  BOOST_TEST(std::abs(fourth - 3) < 5e-2);
  BOOST_TEST(largest > 4.4);
  BOOST_TEST(largest < 7.0);
}
