// LayerNorm, RMSNorm and sums over rows against double precision; gradients against differences of the reference. Tolerances: a
// few fp32 roundings (6e-8) times the growth of a sum of up to 130 terms, relative to the largest value.
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::Write;

namespace {

constexpr float eps = 1e-5f;
constexpr double tolerance = 2e-6;

Doubles layer_norm(const Doubles& x, const Doubles& gain, const Doubles& bias, std::size_t R, std::size_t C) {
  Doubles y(R * C);
  for (std::size_t r = 0; r < R; ++r) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < C; ++c) mean += x[r * C + c] / static_cast<double>(C);
    for (std::size_t c = 0; c < C; ++c) variance += (x[r * C + c] - mean) * (x[r * C + c] - mean) / static_cast<double>(C);
    for (std::size_t c = 0; c < C; ++c)
      y[r * C + c] = (x[r * C + c] - mean) / std::sqrt(variance + static_cast<double>(eps)) * gain[c] + bias[c];
  }
  return y;
}

Doubles rms_norm(const Doubles& x, const Doubles& gain, std::size_t R, std::size_t C) {
  Doubles y(R * C);
  for (std::size_t r = 0; r < R; ++r) {
    double square = 0;
    for (std::size_t c = 0; c < C; ++c) square += x[r * C + c] * x[r * C + c] / static_cast<double>(C);
    for (std::size_t c = 0; c < C; ++c) y[r * C + c] = x[r * C + c] / std::sqrt(square + static_cast<double>(eps)) * gain[c];
  }
  return y;
}

struct Size {
  std::size_t R, C;
};
const std::vector<Size> sizes = {{1, 1}, {7, 13}, {5, 48}, {37, 65}, {3, 130}};

}  // namespace

BOOST_AUTO_TEST_CASE(layer_norm_forward_and_backward) {
  CpuStream stream;
  for (const auto [R, C] : sizes) {
    BOOST_TEST_CONTEXT("R " << R << ", C " << C) {
      Floats x = random_floats(R * C, 1, 2.0f);
      for (float& value : x) value += 3.0f;  // a mean that is not small compared with the spread
      const Floats gain = random_floats(C, 2), bias = random_floats(C, 3), dy = random_floats(R * C, 4);
      Floats y(R * C), stats(2 * R);
      kernels::layer_norm_forward(stream, y.data(), stats.data(), x.data(), gain.data(), bias.data(), R, C, eps);
      const Doubles X = upcast(x), G = upcast(gain), B = upcast(bias), dY = upcast(dy);
      BOOST_TEST(relative_error(y, layer_norm(X, G, B, R, C)) < tolerance);

      const Doubles dX = numeric_gradient([&](const Doubles& at) { return dot(layer_norm(at, G, B, R, C), dY); }, X);
      const Doubles dG = numeric_gradient([&](const Doubles& at) { return dot(layer_norm(X, at, B, R, C), dY); }, G);
      const Doubles dB = numeric_gradient([&](const Doubles& at) { return dot(layer_norm(X, G, at, R, C), dY); }, B);
      Floats dx(R * C, 99.0f), d_gain(C, 99.0f), d_bias(C, 99.0f),
          scratch(kernels::column_sum_scratch(C, cpu_traits(1)), 99.0f);
      kernels::layer_norm_backward(stream, dx.data(), Write::overwrite, d_gain.data(), d_bias.data(), Write::overwrite,
                                   dy.data(), x.data(), stats.data(), gain.data(), R, C, scratch.data());
      if (C > 1) BOOST_TEST(relative_error(dx, dX) < 3 * tolerance);  // with C = 1 the gradient is 0
      BOOST_TEST(relative_error(d_gain, dG) < (C > 1 ? 3 * tolerance : 1e-5));
      BOOST_TEST(relative_error(d_bias, dB) < tolerance);

      const Floats before_x = random_floats(R * C, 5), before_gain = random_floats(C, 6), before_bias = random_floats(C, 7);
      Floats dx2 = before_x, d_gain2 = before_gain, d_bias2 = before_bias;
      kernels::layer_norm_backward(stream, dx2.data(), Write::add, d_gain2.data(), d_bias2.data(), Write::add, dy.data(),
                                   x.data(), stats.data(), gain.data(), R, C, scratch.data());
      BOOST_TEST(relative_error(dx2, added(upcast(dx), before_x)) < 1e-6);
      BOOST_TEST(relative_error(d_gain2, added(upcast(d_gain), before_gain)) < 1e-6);
      BOOST_TEST(relative_error(d_bias2, added(upcast(d_bias), before_bias)) < 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_forward_and_backward) {
  CpuStream stream;
  for (const auto [R, C] : sizes) {
    BOOST_TEST_CONTEXT("R " << R << ", C " << C) {
      const Floats x = random_floats(R * C, 1, 2.0f), gain = random_floats(C, 2), dy = random_floats(R * C, 4);
      Floats y(R * C), stats(R);
      kernels::rms_norm_forward(stream, y.data(), stats.data(), x.data(), gain.data(), R, C, eps);
      const Doubles X = upcast(x), G = upcast(gain), dY = upcast(dy);
      BOOST_TEST(relative_error(y, rms_norm(X, G, R, C)) < tolerance);

      const Doubles dX = numeric_gradient([&](const Doubles& at) { return dot(rms_norm(at, G, R, C), dY); }, X);
      const Doubles dG = numeric_gradient([&](const Doubles& at) { return dot(rms_norm(X, at, R, C), dY); }, G);
      Floats dx(R * C, 99.0f), d_gain(C, 99.0f), scratch(kernels::column_sum_scratch(C, cpu_traits(1)), 99.0f);
      kernels::rms_norm_backward(stream, dx.data(), Write::overwrite, d_gain.data(), Write::overwrite, dy.data(), x.data(),
                                 stats.data(), gain.data(), R, C, scratch.data());
      if (C > 1) BOOST_TEST(relative_error(dx, dX) < 3 * tolerance);  // with C = 1 only eps keeps the gradient from being 0
      BOOST_TEST(relative_error(d_gain, dG) < 3 * tolerance);

      const Floats before_x = random_floats(R * C, 5), before_gain = random_floats(C, 6);
      Floats dx2 = before_x, d_gain2 = before_gain;
      kernels::rms_norm_backward(stream, dx2.data(), Write::add, d_gain2.data(), Write::add, dy.data(), x.data(), stats.data(),
                                 gain.data(), R, C, scratch.data());
      BOOST_TEST(relative_error(dx2, added(upcast(dx), before_x)) < 1e-6);
      BOOST_TEST(relative_error(d_gain2, added(upcast(d_gain), before_gain)) < 1e-6);
    }
  }
}

// Heads are separate rows for RMSNorm: the results are those of rms_norm(), in place, and numbers between heads do not change.
BOOST_AUTO_TEST_CASE(head_norm_is_the_rms_norm_of_each_head) {
  CpuStream stream;
  for (const auto [R, D] : sizes)
    for (const std::size_t heads : {1, 3}) {
      const std::size_t stride = heads * D + 4, n = R * heads * D;
      const Floats rows = random_floats(R * stride, 1, 2.0f), gain = random_floats(D, 2), d_rows = random_floats(R * stride, 4);
      const auto heads_of = [&, D = D](const Floats& strided) {
        Floats dense(n);
        for (std::size_t i = 0; i < n; ++i) dense[i] = strided[i / (heads * D) * stride + i % (heads * D)];
        return dense;
      };
      Floats x = rows, before(n, 99.0f), stats(R * heads, 99.0f), y(n), plain_stats(R * heads);
      kernels::head_norm_forward(stream, x.data(), before.data(), stats.data(), gain.data(), R, heads, D, stride, eps);
      BOOST_TEST((before == heads_of(rows)));
      kernels::rms_norm_forward(stream, y.data(), plain_stats.data(), before.data(), gain.data(), R * heads, D, eps);
      BOOST_TEST((heads_of(x) == y));
      BOOST_TEST((stats == plain_stats));

      Floats dx = d_rows, d_gain = random_floats(D, 5), plain_dx(n), plain_gain = d_gain,
             scratch(kernels::column_sum_scratch(D, cpu_traits(1)), 99.0f);
      for (const Write write : {Write::add, Write::overwrite}) {
        dx = d_rows;
        kernels::head_norm_backward(stream, dx.data(), d_gain.data(), write, before.data(), stats.data(), gain.data(), R, heads,
                                    D, stride, scratch.data());
        kernels::rms_norm_backward(stream, plain_dx.data(), Write::overwrite, plain_gain.data(), write, heads_of(d_rows).data(),
                                   before.data(), stats.data(), gain.data(), R * heads, D, scratch.data());
        BOOST_TEST((heads_of(dx) == plain_dx));
        BOOST_TEST((d_gain == plain_gain));
      }
      for (std::size_t i = 0; i < R * stride; ++i)
        if (i % stride >= heads * D) BOOST_REQUIRE((x[i] == rows[i] && dx[i] == d_rows[i]));
    }
}

BOOST_AUTO_TEST_CASE(column_sums_of_strided_rows) {
  CpuStream stream;
  for (const auto [R, C] : std::vector<Size>{{1, 1}, {7, 13}, {100, 48}, {331, 65}, {1029, 600}}) {
    const std::size_t stride = C + 5;
    const Floats dy = random_floats(R * stride, 1);
    Doubles want(C);
    for (std::size_t r = 0; r < R; ++r)
      for (std::size_t c = 0; c < C; ++c) want[c] += static_cast<double>(dy[r * stride + c]);
    Floats got(C, 99.0f), scratch(kernels::column_sum_scratch(C, cpu_traits(1)), 99.0f);
    kernels::bias_backward(stream, got.data(), dy.data(), R, C, stride, Write::overwrite, scratch.data());
    BOOST_TEST(relative_error(got, want) < tolerance);
    const Floats first = got;
    kernels::bias_backward(stream, got.data(), dy.data(), R, C, stride, Write::add, scratch.data());
    BOOST_TEST(relative_error(got, added(upcast(first), first)) == 0.0);
  }
}
