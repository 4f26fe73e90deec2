// Compares the elementary functions with libm in double; the bounds are those documented in lib/kernels/math.hpp. For x86-64 it
// is built twice: without fused multiply-add, as in the x86-64-v2 kernels, and with it.
#include "kernels/math.hpp"
#include "device/cpu/processor.hpp"

#include <cstdlib>
#include <numbers>

#include "support.hpp"

namespace k = fsdp::kernels;

namespace {

#if defined(__FMA__)
const bool runs_here = [] {
  if (fsdp::best_cpu_level() == fsdp::CpuLevel::v2) std::exit(77);
  return true;
}();
#endif

/// Returns the distance of `got` from `want` in units in the last place of the float nearest to `want`.
double ulps(float got, double want) {
  const double size = std::max(std::abs(want), 0x1p-126);
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, std::ilogb(size) - 23);
}

/// Returns the largest error of f over every `step`th float with begin <= |x| <= end, both signs.
template <class F, class Exact>
double largest_error(F f, Exact exact, float begin, float end, std::uint32_t step) {
  double worst = 0;
  for (std::uint32_t bits = __builtin_bit_cast(std::uint32_t, begin); bits <= __builtin_bit_cast(std::uint32_t, end);
       bits += step)
    for (const float x : {__builtin_bit_cast(float, bits), -__builtin_bit_cast(float, bits)})
      worst = std::max(worst, ulps(f(x), exact(static_cast<double>(x))));
  return worst;
}

}  // namespace

BOOST_AUTO_TEST_CASE(exponential) {
  const double error =
      largest_error([](float x) { return k::exp(x); }, [](double x) { return std::exp(x); }, 1e-30f, 86.9f, 397);
  BOOST_TEST_MESSAGE("exp: " << error << " ulp");
  BOOST_TEST(error < 1.1);
  BOOST_TEST(k::exp(0.0f) == 1.0f);
  BOOST_TEST(k::exp(-200.0f) == 0.0f);
  BOOST_TEST(k::exp(-INFINITY) == 0.0f);
  BOOST_TEST(k::exp(200.0f) == INFINITY);
  BOOST_TEST(k::exp(INFINITY) == INFINITY);
  BOOST_TEST(std::isnan(k::exp(NAN)));
  BOOST_TEST(ulps(k::exp(88.7f), std::exp(static_cast<double>(88.7f))) < 2.0);
}

BOOST_AUTO_TEST_CASE(exponential_minus_one) {
  const double error =
      largest_error([](float x) { return k::expm1(x); }, [](double x) { return std::expm1(x); }, 1e-30f, 86.0f, 397);
  BOOST_TEST_MESSAGE("expm1: " << error << " ulp");
  BOOST_TEST(error < 1.7);
}

BOOST_AUTO_TEST_CASE(hyperbolic_tangent) {
  const double error =
      largest_error([](float x) { return k::tanh(x); }, [](double x) { return std::tanh(x); }, 1e-30f, 1e10f, 397);
  BOOST_TEST_MESSAGE("tanh: " << error << " ulp");
  BOOST_TEST(error < 2.4);
  BOOST_TEST(std::isnan(k::tanh(NAN)));
}

BOOST_AUTO_TEST_CASE(logistic) {
  const double error =
      largest_error([](float x) { return k::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }, 1e-30f, 86.0f, 397);
  BOOST_TEST_MESSAGE("sigmoid: " << error << " ulp");
  BOOST_TEST(error < 2.5);
  BOOST_TEST(k::sigmoid(-1000.0f) == 0.0f);
  BOOST_TEST(k::sigmoid(1000.0f) == 1.0f);
}

BOOST_AUTO_TEST_CASE(error_function) {
  const double error =
      largest_error([](float x) { return k::erf(x); }, [](double x) { return std::erf(x); }, 1e-30f, 1e10f, 397);
  BOOST_TEST_MESSAGE("erf: " << error << " ulp");
  BOOST_TEST(error < 3.1);
  BOOST_TEST(std::isnan(k::erf(NAN)));
}

BOOST_AUTO_TEST_CASE(logarithm) {
  double error = 0;
  for (std::uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 397) {
    const float x = __builtin_bit_cast(float, bits);
    error = std::max(error, ulps(k::log(x), std::log(static_cast<double>(x))));
  }
  BOOST_TEST_MESSAGE("log: " << error << " ulp");
  BOOST_TEST(error < 0.9);
  BOOST_TEST(k::log(1.0f) == 0.0f);
}

BOOST_AUTO_TEST_CASE(sine_and_cosine_of_a_turn) {
  double error = 0, circle = 0;
  for (std::uint64_t word = 0; word < (1ull << 32); word += 1013) {
    const k::SinCos got = k::sincos_turn(static_cast<std::uint32_t>(word));
    const double angle = static_cast<double>(word) * 0x1p-31 * std::numbers::pi;
    error = std::max({error, std::abs(got.sin - std::sin(angle)), std::abs(got.cos - std::cos(angle))});
    circle = std::max(circle, std::abs(static_cast<double>(got.sin) * got.sin + static_cast<double>(got.cos) * got.cos - 1));
  }
  BOOST_TEST_MESSAGE("sin, cos: " << error << " absolute");
  BOOST_TEST(error < 1.1e-7);
  BOOST_TEST(circle < 3e-7);
}
