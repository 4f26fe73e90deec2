// Softmax and cross-entropy against double precision. Tolerance: a sum of V terms in fp32 and a logarithm.
#define BOOST_TEST_MODULE kernels.cross_entropy
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

double loss_of_row(const Doubles& logits, std::size_t r, std::size_t V, std::int32_t target) {
  if (target < 0) return 0;
  double top = -1e300, total = 0;
  for (std::size_t v = 0; v < V; ++v) top = std::max(top, logits[r * V + v]);
  for (std::size_t v = 0; v < V; ++v) total += std::exp(logits[r * V + v] - top);
  return std::log(total) + top - logits[r * V + static_cast<std::size_t>(target)];
}

}  // namespace

BOOST_AUTO_TEST_CASE(loss_and_gradient) {
  CpuStream stream;
  for (const std::size_t V : {1, 2, 31, 32, 211}) {
    const std::size_t R = 5;
    const std::vector<std::int32_t> targets = {0, -1, static_cast<std::int32_t>(V - 1), static_cast<std::int32_t>(V / 2), -7};
    const Floats logits = random_floats(R * V, 1, 20.0f);
    const Doubles L = widen(logits);
    Floats unchanged = logits, loss(R, 99.0f), loss_alone(R, 99.0f), gradient = logits;
    kernels::cross_entropy(stream, loss_alone.data(), unchanged.data(), targets.data(), R, V, 0.0f);
    kernels::cross_entropy(stream, loss.data(), gradient.data(), targets.data(), R, V, 0.25f);
    BOOST_TEST((unchanged == logits));
    BOOST_TEST((loss == loss_alone));
    for (std::size_t r = 0; r < R; ++r) BOOST_TEST(std::abs(loss[r] - loss_of_row(L, r, V, targets[r])) < 5e-6);
    const Doubles want = numeric_gradient(
        [&](const Doubles& at) {
          double total = 0;
          for (std::size_t r = 0; r < R; ++r) total += 0.25 * loss_of_row(at, r, V, targets[r]);
          return total;
        },
        L);
    for (std::size_t i = 0; i < R * V; ++i) BOOST_REQUIRE_SMALL(gradient[i] - want[i], 1e-6);
    for (std::size_t v = 0; v < V; ++v) BOOST_TEST(gradient[V + v] == 0.0f);
  }
}

BOOST_AUTO_TEST_CASE(extreme_logits_stay_finite_and_nan_shows) {
  CpuStream stream;
  const std::vector<std::int32_t> targets = {0, 0, 1};
  Floats logits = {1e30f, -1e30f, 0, 3e38f, 3e38f, 3e38f, 0, NAN, 1}, loss(3);
  kernels::cross_entropy(stream, loss.data(), logits.data(), targets.data(), 3, 3, 1.0f);
  BOOST_TEST(loss[0] == 0.0f);
  BOOST_TEST(std::abs(loss[1] - std::log(3.0)) < 1e-6);
  BOOST_TEST(logits[1] == 0.0f);
  BOOST_TEST(std::isnan(loss[2]));
}

BOOST_AUTO_TEST_CASE(sum_in_double) {
  CpuStream stream;
  const Floats x = {1e8f, 1.0f, -1e8f, 0.5f};
  BOOST_TEST(kernels::sum(stream, x.data(), x.size()) == 1.5);
  BOOST_TEST(kernels::sum(stream, x.data(), 0) == 0.0);
}
