// AdamW against the algorithm in double, and the initial weights.
#define BOOST_TEST_MODULE kernels.optimizer
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(ten_steps_of_adamw) {
  CpuStream stream;
  const std::size_t n = 9001;
  const Floats start = random_floats(n, 1);
  Floats p = start, m(n), v(n);
  Doubles P = widen(start), M(n), V(n);
  for (int t = 1; t <= 10; ++t) {
    const Floats g = random_floats(n, static_cast<std::uint32_t>(100 + t), 0.1f);
    const kernels::AdamWStep step{.learning_rate = 1e-2,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .bias_correction1 = 1 - std::pow(0.9, t),
                                  .bias_correction2 = 1 - std::pow(0.999, t),
                                  .gradient_scale = 0.5};
    kernels::adamw(stream, p.data(), m.data(), v.data(), g.data(), n, step);
    for (std::size_t i = 0; i < n; ++i) {
      const double gradient = 0.5 * static_cast<double>(g[i]);
      P[i] -= step.learning_rate * step.weight_decay * P[i];
      M[i] = 0.9 * M[i] + 0.1 * gradient;
      V[i] = 0.999 * V[i] + 0.001 * gradient * gradient;
      P[i] -=
          step.learning_rate / step.bias_correction1 * M[i] / (std::sqrt(V[i]) / std::sqrt(step.bias_correction2) + step.eps);
    }
  }
  // fp32 roundings of ten updates, each at most one unit in the last place of a parameter near 1.
  BOOST_TEST(relative_error(p, P) < 1e-6);
  BOOST_TEST(relative_error(m, M) < 1e-6);
  BOOST_TEST(relative_error(v, V) < 1e-6);
}

BOOST_AUTO_TEST_CASE(denormals_are_flushed_inside_and_the_mode_is_restored) {
  CpuStream stream;
  const std::size_t n = 5000;
  Floats p(n, 1.0f), m(n, 1e-38f), v(n, 1e-38f), g(n);
  const kernels::AdamWStep step{.learning_rate = 1e-3,
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .eps = 1e-8,
                                .weight_decay = 0,
                                .bias_correction1 = 1,
                                .bias_correction2 = 1,
                                .gradient_scale = 1};
  kernels::adamw(stream, p.data(), m.data(), v.data(), g.data(), n, step);
  BOOST_TEST(m[0] == 0.0f);
  BOOST_TEST(v[n - 1] == 0.0f);
  volatile float tiny = 1e-38f;
  BOOST_TEST(tiny * 0.1f > 0.0f);
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
