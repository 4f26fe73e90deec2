// Dropout masks: their definition, their rate, and that they do not depend on how an update is divided into micro-batches.
// attention.cpp tests the masks of attention.
#include "support.hpp"

#include "base/error.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::dropout_mask;
using kernels::DropoutMask;

namespace {

/// Returns the factors of R rows.
Floats factors(const DropoutMask& mask, std::size_t R, std::size_t C) {
  CpuStream stream;
  Floats x(R * C, 1.0f);
  kernels::dropout(stream, x.data(), x.data(), R, C, mask);
  return x;
}

}  // namespace

BOOST_AUTO_TEST_CASE(masks_are_philox) {
  const std::size_t T = 5, B = 3;
  for (const std::size_t C : {1, 7, 8, 9, 64, 65, 203}) {
    const DropoutMask mask = dropout_mask(0.3f, 11, 4, 9, 6, T);
    const auto words = philox({4, 9, 0, 2}, {11, 0});
    BOOST_TEST((mask.key[0] == words[0] && mask.key[1] == words[1]));
    const Floats got = factors(mask, B * T, C);
    const std::size_t groups = (C + 7) / 8;
    for (std::size_t r = 0; r < B * T; ++r)
      for (std::size_t c = 0; c < C; ++c) {
        const std::size_t k = c / groups;
        const std::uint32_t word = philox({static_cast<std::uint32_t>(c % groups), static_cast<std::uint32_t>(r % T), 0,
                                           static_cast<std::uint32_t>(6 + r / T)},
                                          {mask.key[0], mask.key[1]})[k / 2];
        const bool kept = (k % 2 ? word >> 16 : word & 0xffff) >= 19661;  // 0.3 * 65536 = 19660.8
        BOOST_REQUIRE_EQUAL(got[r * C + c], kept ? static_cast<float>(65536.0 / (65536 - 19661)) : 0.0f);
      }
  }
}

// Five standard deviations of a binomial distribution; pairs along a row, from row to row and from site to site are
// independent.
BOOST_AUTO_TEST_CASE(the_rate_is_kept) {
  const std::size_t R = 300, C = 517, n = R * C;
  for (const float rate : {0.1f, 0.5f, 0.9f}) {
    const Floats m = factors(dropout_mask(rate, 1, 2, 3, 0, 50), R, C),
                 site = factors(dropout_mask(rate, 1, 3, 3, 0, 50), R, C);
    const Floats update = factors(dropout_mask(rate, 1, 2, 4, 0, 50), R, C),
                 seed = factors(dropout_mask(rate, 2, 2, 3, 0, 50), R, C);
    auto check_share = [&](double expected, std::size_t count, auto both) {
      std::size_t hits = 0;
      for (std::size_t i = 0; i < count; ++i) hits += both(i);
      const double share = static_cast<double>(hits) / static_cast<double>(count);
      BOOST_TEST(std::abs(share - expected) < 5 * std::sqrt(expected * (1 - expected) / static_cast<double>(count)),
                 share << " instead of " << expected << " at rate " << rate);
    };
    const double p = rate;
    check_share(p, n, [&](std::size_t i) { return m[i] == 0; });
    for (const std::size_t step : {std::size_t{1}, (C + 7) / 8, C, 50 * C})
      check_share(p * p, n - step, [&](std::size_t i) { return m[i] == 0 && m[i + step] == 0; });
    for (const Floats* other : {&site, &update, &seed})
      check_share(p * p, n, [&](std::size_t i) { return m[i] == 0 && (*other)[i] == 0; });
    double sum = 0;
    for (const float factor : m) sum += static_cast<double>(factor);
    BOOST_TEST(std::abs(sum / n - 1) < 5 * std::sqrt(p / (1 - p) / n));  // the mean is kept
  }
}

BOOST_AUTO_TEST_CASE(no_cut_of_an_update_changes_a_mask) {
  const std::size_t T = 6, C = 45, B = 4;
  const Floats whole = factors(dropout_mask(0.2f, 5, 1, 8, 20, T), B * T, C);
  Floats parts;
  for (std::size_t b = 0; b < B; ++b) {
    const Floats part = factors(dropout_mask(0.2f, 5, 1, 8, 20 + b, T), T, C);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  BOOST_TEST((whole == parts));
}

BOOST_AUTO_TEST_CASE(a_branch_is_dropped_before_it_is_added) {
  CpuStream stream;
  const std::size_t R = 14;
  for (const std::size_t C : {3, 64, 65}) {
    const DropoutMask mask = dropout_mask(0.4f, 1, 1, 1, 0, 7);
    const Floats x = random_floats(R * C, 1), branch = random_floats(R * C, 2), bias = random_floats(C, 3),
                 m = factors(mask, R, C);
    Floats y(R * C), in_place = branch;
    kernels::add_residual(stream, y.data(), x.data(), branch.data(), nullptr, R, C, mask);
    kernels::add_residual(stream, in_place.data(), x.data(), in_place.data(), bias.data(), R, C, mask);
    for (std::size_t i = 0; i < R * C; ++i) {
      BOOST_REQUIRE_EQUAL(y[i], x[i] + branch[i] * m[i]);
      BOOST_REQUIRE_EQUAL(in_place[i], x[i] + (branch[i] + bias[i % C]) * m[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(rates_are_checked) {
  BOOST_CHECK_THROW(dropout_mask(1.0f, 0, 0, 0, 0, 1), InternalError);
  BOOST_CHECK_THROW(dropout_mask(-0.1f, 0, 0, 0, 0, 1), InternalError);
  BOOST_CHECK_THROW(dropout_mask(0.1f, 0, 0, 0, std::uint64_t{1} << 32, 1), InternalError);
  BOOST_TEST(dropout_mask(0.0f, 0, 0, 0, 0, 1).dropped == 0);
  BOOST_TEST(dropout_mask(0.999999f, 0, 0, 0, 0, 1).dropped == 65535);
}
