// Element-wise kernels and rotary positions against double precision; slopes against differences of the reference. Tolerance: a
// handful of fp32 roundings (6e-8 each).
#include "support.hpp"

#include <numbers>

using namespace fsdp;
using namespace fsdp::test;
using kernels::Gelu;

namespace {

constexpr double tolerance = 5e-7;

double gelu(Gelu form, double x) {
  if (form == Gelu::tanh) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

template <class F>
double slope(F f, double x) {
  return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

/// Returns values from tiny ones to those for which every activation is flat.
Floats wide_floats(std::size_t n, std::uint32_t seed) {
  Floats x = random_floats(n, seed);
  for (std::size_t i = 0; i < n; ++i) x[i] *= i % 5 == 0 ? 30.0f : i % 5 == 1 ? 1e-4f : 3.0f;
  return x;
}

}  // namespace

BOOST_AUTO_TEST_CASE(bias_and_residual) {
  CpuStream stream;
  const std::size_t R = 7, C = 65;
  const Floats x = random_floats(R * C, 1), branch = random_floats(R * C, 2), bias = random_floats(C, 3);
  Floats with_bias = x, y(R * C), in_place = x;
  kernels::add_bias(stream, with_bias.data(), bias.data(), R, C);
  kernels::add_residual(stream, y.data(), x.data(), branch.data(), nullptr, R, C);
  kernels::add_residual(stream, in_place.data(), in_place.data(), branch.data(), bias.data(), R, C);
  for (std::size_t i = 0; i < R * C; ++i) {
    BOOST_REQUIRE_EQUAL(with_bias[i], x[i] + bias[i % C]);
    BOOST_REQUIRE_EQUAL(y[i], x[i] + branch[i]);
    BOOST_REQUIRE_EQUAL(in_place[i], branch[i] + (x[i] + bias[i % C]));
  }
}

BOOST_AUTO_TEST_CASE(columns_are_copied) {
  CpuStream stream;
  const std::size_t R = 7, C = 65, from_stride = 70, to_stride = 90;
  const Floats from = random_floats(R * from_stride, 1);
  Floats to(R * to_stride, -1.0f);
  kernels::copy_columns(stream, to.data() + 3, to_stride, from.data() + 2, from_stride, R, C);
  for (std::size_t i = 0; i < R * to_stride; ++i) {
    const std::size_t r = i / to_stride, c = i % to_stride;
    BOOST_REQUIRE_EQUAL(to[i], c >= 3 && c < 3 + C ? from[r * from_stride + 2 + c - 3] : -1.0f);
  }
}

BOOST_AUTO_TEST_CASE(gelu_forward_and_backward) {
  CpuStream stream;
  const std::size_t R = 61, F = 211;  // more than one block of a flat array
  for (const Gelu form : {Gelu::tanh, Gelu::erf}) {
    const Floats before = wide_floats(R * F, 1), bias = random_floats(F, 2), d_out = random_floats(R * F, 3);
    Floats pre = before, out(R * F), d_pre = d_out;
    kernels::bias_gelu_forward(stream, form, out.data(), pre.data(), bias.data(), R, F);
    kernels::gelu_backward(stream, form, d_pre.data(), d_pre.data(), pre.data(), R * F);
    for (std::size_t i = 0; i < R * F; ++i) {
      BOOST_REQUIRE_EQUAL(pre[i], before[i] + bias[i % F]);
      const double at = pre[i];
      // Relative to |x|: in the negative tail 1 + tanh cancels, in PyTorch's fp32 as well.
      BOOST_REQUIRE_SMALL(out[i] - gelu(form, at), tolerance * std::max(std::abs(at), 1e-3));
      BOOST_REQUIRE_SMALL(d_pre[i] - d_out[i] * slope([&](double x) { return gelu(form, x); }, at), 2e-6);
    }
    Floats again = pre, out2(R * F);
    kernels::bias_gelu_forward(stream, form, out2.data(), again.data(), nullptr, R, F);
    BOOST_TEST((again == pre && out2 == out));
  }
}

BOOST_AUTO_TEST_CASE(relu_forward_and_backward) {
  CpuStream stream;
  const std::size_t R = 61, F = 211;
  Floats before = wide_floats(R * F, 1), bias = random_floats(F, 2);
  const Floats d_out = random_floats(R * F, 3);
  before[5] = bias[5] = 0;  // the kink
  Floats pre = before, out(R * F), d_pre = d_out;
  kernels::bias_relu_forward(stream, out.data(), pre.data(), bias.data(), R, F);
  kernels::relu_backward(stream, d_pre.data(), d_pre.data(), pre.data(), R * F);
  for (std::size_t i = 0; i < R * F; ++i) {
    BOOST_REQUIRE_EQUAL(pre[i], before[i] + bias[i % F]);
    BOOST_REQUIRE_EQUAL(out[i], std::max(pre[i], 0.0f));
    BOOST_REQUIRE_EQUAL(d_pre[i], pre[i] > 0 ? d_out[i] : 0.0f);
  }
  Floats again = pre, out2(R * F);
  kernels::bias_relu_forward(stream, out2.data(), again.data(), nullptr, R, F);
  BOOST_TEST((again == pre && out2 == out));
}

BOOST_AUTO_TEST_CASE(sigmoid_and_products) {
  CpuStream stream;
  const std::size_t R = 61, F = 211, n = R * F;
  Floats pre = wide_floats(n, 1), out(n);
  const Floats bias = random_floats(F, 2), d_out = random_floats(n, 3), before = pre;
  kernels::bias_sigmoid_forward(stream, out.data(), pre.data(), bias.data(), R, F);
  Floats d_pre = d_out;
  kernels::sigmoid_backward(stream, d_pre.data(), d_pre.data(), pre.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    BOOST_REQUIRE_EQUAL(pre[i], before[i] + bias[i % F]);
    const double s = 1 / (1 + std::exp(-static_cast<double>(pre[i])));
    BOOST_REQUIRE_SMALL(out[i] - s, 1e-6);
    BOOST_REQUIRE_SMALL(d_pre[i] - d_out[i] * s * (1 - s), 1e-6);
  }
  Floats sum = out, in_place = out;
  kernels::multiply(stream, sum.data(), pre.data(), d_out.data(), n, kernels::Write::add);
  kernels::multiply(stream, in_place.data(), in_place.data(), d_out.data(), n, kernels::Write::overwrite);
  for (std::size_t i = 0; i < n; ++i) {
    BOOST_REQUIRE_EQUAL(in_place[i], out[i] * d_out[i]);
    BOOST_REQUIRE_SMALL(sum[i] - (out[i] + static_cast<double>(pre[i]) * d_out[i]),
                        1e-6 * (1 + std::abs(static_cast<double>(pre[i]))));
  }
}

BOOST_AUTO_TEST_CASE(swiglu_forward_and_backward) {
  CpuStream stream;
  const std::size_t n = 9001;
  const Floats gate = wide_floats(n, 1), up = random_floats(n, 2), d_out = random_floats(n, 3);
  Floats out(n), d_gate(n), d_up = d_out;
  kernels::swiglu_forward(stream, out.data(), gate.data(), up.data(), n);
  kernels::swiglu_backward(stream, d_gate.data(), d_up.data(), d_up.data(), gate.data(), up.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    const double g = gate[i], u = up[i], d = d_out[i];
    BOOST_REQUIRE_SMALL(out[i] - silu(g) * u, tolerance * std::max(std::abs(g), 1e-3));
    BOOST_REQUIRE_SMALL(d_up[i] - d * silu(g), tolerance * std::max(std::abs(g), 1e-3));
    BOOST_REQUIRE_SMALL(d_gate[i] - d * u * slope(silu, g), 2e-6);
  }
  Floats in_place = d_out;  // the output may be the other input
  kernels::swiglu_backward(stream, in_place.data(), d_up.data(), in_place.data(), gate.data(), up.data(), n);
  BOOST_TEST((in_place == d_gate));
}

BOOST_AUTO_TEST_CASE(values_are_clipped) {
  CpuStream stream;
  Floats x(9001);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 1000 - 4;
  Floats want = x;
  for (std::size_t i = 0; i < 9000; ++i) want[i] = std::min(std::max(x[i], -1.5f), 1.5f);
  kernels::clip_values(stream, x.data(), 9000, 1.5f);
  BOOST_TEST((x == want));
  BOOST_TEST(x[9000] == 5.0f);  // after the end
}

BOOST_AUTO_TEST_CASE(fills) {
  CpuStream stream;
  Floats x(9001, 1.0f);
  kernels::fill_zero(stream, x.data(), 9000);
  BOOST_TEST((x == [] {
    Floats want(9001);
    want[9000] = 1.0f;
    return want;
  }()));
  kernels::fill_constant(stream, x.data() + 1, 4999, 2.5f);
  BOOST_TEST(x[0] == 0.0f);
  BOOST_TEST(x[1] == 2.5f);
  BOOST_TEST(x[4999] == 2.5f);
  BOOST_TEST(x[5000] == 0.0f);
}

BOOST_AUTO_TEST_CASE(rotary_positions) {
  CpuStream stream;
  const std::size_t B = 2, T = 5;
  for (const std::size_t D : {2, 8, 10, 64}) {
    const std::size_t heads = 3, stride = heads * D + 7;
    Floats table(T * D);
    for (std::size_t t = 0; t < T; ++t)
      for (std::size_t i = 0; i < D / 2; ++i) {
        const double angle = static_cast<double>(t) * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(D));
        table[t * D + i] = static_cast<float>(std::cos(angle));
        table[t * D + D / 2 + i] = static_cast<float>(std::sin(angle));
      }
    const Floats before = random_floats(B * T * stride, 1);
    Floats x = before;
    kernels::rope(stream, x.data(), B, T, heads, D, D, stride, table.data(), D, false);
    for (std::size_t r = 0; r < B * T; ++r)
      for (std::size_t c = 0; c < stride; ++c) {
        double want = before[r * stride + c];
        if (c < heads * D) {
          const std::size_t i = c % D, half = D / 2, base = r * stride + c / D * D;
          const double cosine = table[r % T * D + i % half], sine = table[r % T * D + half + i % half];
          const double a = before[base + i % half], b = before[base + half + i % half];
          want = i < half ? a * cosine - b * sine : b * cosine + a * sine;
        }
        BOOST_REQUIRE_SMALL(x[r * stride + c] - want, tolerance);
      }
    // A rotation's transpose is its inverse.
    kernels::rope(stream, x.data(), B, T, heads, D, D, stride, table.data(), D, true);
    BOOST_TEST(relative_error(x, upcast(before)) < tolerance);
  }
}
