// Optimizers against their algorithms in double, how states and copies are rounded, and the initial weights.
#define BOOST_TEST_MODULE kernels.optimizer
#include "kernels/optimizers.hpp"
#include "support.hpp"

#include <functional>

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// An optimizer on one flat array, by the kernels and by a reference in double.
struct Algorithm {
  const char* name;
  std::size_t states;
  std::function<void(Stream&, const kernels::UpdateTarget&, int t)> kernel;
  std::function<double(double p, double g, double* s, int t)> reference;  // the new p
};

constexpr double rate = 1e-2, wd = 0.1, b1 = 0.9, b2 = 0.999, mu = 0.8;

std::vector<Algorithm> algorithms() {
  const auto adam = [](bool amsgrad, double decoupled, double l2) {
    return Algorithm{amsgrad  ? "amsgrad"
                     : l2 > 0 ? "adam"
                              : "adamw",
                     amsgrad ? 3u : 2u,
                     [=](Stream& stream, const kernels::UpdateTarget& target, int t) {
                       kernels::adam(stream, target,
                                     {rate, b1, b2, 1e-8, {decoupled, l2}, 1 - std::pow(b1, t), 1 - std::pow(b2, t), amsgrad});
                     },
                     [=](double p, double g, double* s, int t) {
                       g += l2 * p;
                       s[0] = b1 * s[0] + (1 - b1) * g;
                       s[1] = b2 * s[1] + (1 - b2) * g * g;
                       if (amsgrad) s[2] = std::max(s[2], s[1]);
                       const double root = std::sqrt((amsgrad ? s[2] : s[1]) / (1 - std::pow(b2, t)));
                       return p * (1 - rate * decoupled) - rate / (1 - std::pow(b1, t)) * s[0] / (root + 1e-8);
                     }};
  };
  const auto sgd = [](double momentum, bool nesterov) {
    return Algorithm{nesterov       ? "nesterov"
                     : momentum > 0 ? "momentum"
                                    : "sgd",
                     momentum > 0 ? 1u : 0u,
                     [=](Stream& stream, const kernels::UpdateTarget& target, int) {
                       kernels::sgd(stream, target, {rate, momentum, nesterov, wd});
                     },
                     [=](double p, double g, double* s, int) {
                       g += wd * p;
                       if (momentum == 0) return p - rate * g;
                       s[0] = momentum * s[0] + g;
                       return p - rate * (nesterov ? g + momentum * s[0] : s[0]);
                     }};
  };
  return {adam(false, wd, 0),
          adam(false, 0, wd),
          adam(true, wd, 0),
          sgd(0, false),
          sgd(mu, false),
          sgd(mu, true),
          {"adagrad", 1,
           [](Stream& stream, const kernels::UpdateTarget& target, int) {
             kernels::adagrad(stream, target, {rate, 1e-10, wd});
           },
           [](double p, double g, double* s, int) {
             g += wd * p;
             s[0] += g * g;
             return p - rate * g / (std::sqrt(s[0]) + 1e-10);
           }},
          {"lion", 1,
           [](Stream& stream, const kernels::UpdateTarget& target, int) {
             kernels::lion(stream, target, {rate, b1, b2, wd});
           },
           [](double p, double g, double* s, int) {
             const double u = b1 * s[0] + (1 - b1) * g;
             s[0] = b2 * s[0] + (1 - b2) * g;
             return p * (1 - rate * wd) - rate * (u > 0 ? 1 : u < 0 ? -1 : 0);
           }}};
}

kernels::UpdateTarget target_of(Floats& p, std::vector<Floats>& states, const Floats& g) {
  kernels::UpdateTarget target{.parameter = p.data(), .gradient = g.data(), .n = p.size(), .gradient_scale = 0.5};
  for (std::size_t k = 0; k < states.size(); ++k) target.state[k] = reinterpret_cast<std::byte*>(states[k].data());
  return target;
}

std::uint16_t upper(float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); }
float widened(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

}  // namespace

BOOST_AUTO_TEST_CASE(ten_steps_of_each) {
  CpuStream stream;
  const std::size_t n = 9001;
  for (const Algorithm& algorithm : algorithms()) {
    const Floats start = random_floats(n, 1);
    Floats p = start;
    Doubles P = widen(start);
    std::vector<Floats> s(algorithm.states, Floats(n));
    std::vector<Doubles> S(algorithm.states, Doubles(n));
    for (int t = 1; t <= 10; ++t) {
      const Floats g = random_floats(n, static_cast<std::uint32_t>(100 + t), 0.1f);
      algorithm.kernel(stream, target_of(p, s, g), t);
      for (std::size_t i = 0; i < n; ++i) {
        double state[3] = {};
        for (std::size_t k = 0; k < S.size(); ++k) state[k] = S[k][i];
        P[i] = algorithm.reference(P[i], 0.5 * static_cast<double>(g[i]), state, t);
        for (std::size_t k = 0; k < S.size(); ++k) S[k][i] = state[k];
      }
    }
    // fp32 roundings of ten updates, each at most one unit in the last place of a parameter near 1. lion's sign of nearly
    // nothing is left to chance: there are none in these numbers.
    BOOST_TEST(relative_error(p, P) < 1e-6, algorithm.name);
    for (std::size_t k = 0; k < s.size(); ++k) BOOST_TEST(relative_error(s[k], S[k]) < 1e-6, algorithm.name);
  }
}

BOOST_AUTO_TEST_CASE(denormals_are_flushed_inside_and_the_mode_is_restored) {
  CpuStream stream;
  const std::size_t n = 5000;
  Floats p(n, 1.0f), g(n);
  std::vector<Floats> s(2, Floats(n, 1e-38f));
  kernels::adam(stream, target_of(p, s, g), {1e-3, 0.9, 0.99, 1e-8, {}, 1, 1});
  BOOST_TEST(s[0][0] == 0.0f);
  BOOST_TEST(s[1][n - 1] == 0.0f);
  volatile float tiny = 1e-38f;
  BOOST_TEST(tiny * 0.1f > 0.0f);
}

BOOST_AUTO_TEST_CASE(the_copy_is_rounded_to_the_nearest_even) {
  CpuStream stream;
  // With a rate of 0 parameters stay what they are: halfway cases of both types, the ends of fp16's range, small ones.
  Floats p = {1.0f,          1.00390625f,   1.01171875f,   -1.00390625f,   65504.0f,       65519.0f,
              65520.0f,      -1e6f,         3e38f,         1.00048828125f, 1.00146484375f, 6.1035156e-5f,
              5.9604645e-8f, 2.9802322e-8f, 2.9802326e-8f, 8.9406967e-8f,  0.0f,           -0.0f};
  for (const float x : random_floats(9000, 3, 4.0f)) p.push_back(x);
  const Floats g(p.size());
  for (const DType type : {DType::bf16, DType::f16}) {
    std::vector<std::uint16_t> copy(p.size());
    std::vector<Floats> none;
    kernels::UpdateTarget target = target_of(p, none, g);
    target.copy = copy.data();
    target.copy_type = type;
    kernels::sgd(stream, target, {0.0});
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (type == DType::f16) {
        BOOST_TEST_REQUIRE(copy[i] == std::bit_cast<std::uint16_t>(static_cast<_Float16>(p[i])), p[i]);
        continue;
      }
      const std::uint16_t below = upper(p[i]), above = static_cast<std::uint16_t>(below + 1);  // in magnitude
      const double to_below = std::abs(static_cast<double>(p[i]) - widened(below)),
                   to_above = std::abs(static_cast<double>(widened(above)) - p[i]);
      const std::uint16_t nearest = to_below < to_above ? below : to_above < to_below ? above : below % 2 == 0 ? below : above;
      BOOST_TEST_REQUIRE(copy[i] == nearest, p[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(states_in_bf16_are_rounded_at_random_and_right_on_average) {
  CpuStream stream;
  const std::size_t n = 1 << 16;
  Floats p(n), g(n, 1.0f);
  std::vector<std::uint16_t> m(n, upper(1.0f));
  kernels::UpdateTarget target{.parameter = p.data(), .gradient = g.data(), .n = n, .state_type = DType::bf16};
  target.state[0] = reinterpret_cast<std::byte*>(m.data());
  target.noise = kernels::state_noise(1, 2, 3, 0);
  // 1 becomes 1.001, which is 0.128 of the way to the next bf16 number.
  kernels::lion(stream, target, {0, 0.9, 0.999, 0});
  std::fill(g.begin(), g.end(), 2.0f);
  std::fill(m.begin(), m.end(), upper(1.0f));
  kernels::lion(stream, target, {0, 0.9, 0.999, 0});
  double mean = 0;
  for (const std::uint16_t x : m) {
    BOOST_TEST_REQUIRE((x == upper(1.0f) || x == upper(1.0f) + 1));
    mean += static_cast<double>(widened(x)) / n;
  }
  BOOST_TEST(std::abs(mean - 1.001) < 6 * 0.0078125 * 0.334 / std::sqrt(n));  // six standard deviations
}

BOOST_AUTO_TEST_CASE(no_cut_changes_a_bit_of_a_bf16_state) {
  CpuStream stream;
  const std::size_t n = 20000;
  const Floats g = random_floats(n, 4);
  const auto run = [&](const std::vector<std::size_t>& cuts, std::uint64_t update, bool amsgrad) {
    Floats p = random_floats(n, 5);
    std::vector<std::vector<std::uint16_t>> s(3, std::vector<std::uint16_t>(n, upper(0.37f)));
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
      kernels::UpdateTarget target{.parameter = p.data() + cuts[c], .gradient = g.data() + cuts[c], .n = cuts[c + 1] - cuts[c]};
      for (std::size_t k = 0; k < 3; ++k) target.state[k] = reinterpret_cast<std::byte*>(s[k].data() + cuts[c]);
      target.state_type = DType::bf16;
      target.noise = kernels::state_noise(7, update, 3, cuts[c]);
      kernels::adam(stream, target, {rate, b1, b2, 1e-8, {wd, 0}, 0.5, 0.5, amsgrad});
    }
    std::vector<float> all = p;
    for (const auto& state : s)
      for (const std::uint16_t x : state) all.push_back(widened(x));
    return all;
  };
  for (const bool amsgrad : {false, true}) {
    const Floats whole = run({0, n}, 9, amsgrad);
    BOOST_CHECK((whole == run({0, 16, 4096, 4112, 9008, 9024, n}, 9, amsgrad)));
    BOOST_CHECK((whole == run({0, 1, 5000, 5001, n}, 9, amsgrad)));
    BOOST_CHECK((whole != run({0, n}, 10, amsgrad)));
  }
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
