// Embeddings and their gradients. Sums have at most a dozen terms in the documented order, so they equal the float references.
#include <cmath>

#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::Write;

// NEFTune (Jain et al. 2023, algorithm 1): numbers between -alpha / sqrt(T C) and alpha / sqrt(T C) with the variance of a
// uniform distribution, a third of the bound's square. The estimate from n numbers has a relative standard deviation of
// sqrt(0.8 / n).
BOOST_AUTO_TEST_CASE(noise_of_neftune) {
  CpuStream stream;
  const std::size_t B = 4, T = 33, C = 101, R = B * T;
  const auto noise_of = [&](std::uint32_t seed, std::uint64_t update, std::uint64_t first_sequence, std::size_t sequences) {
    Floats x(sequences * T * C);
    kernels::add_noise(stream, x.data(), sequences * T, C, kernels::embedding_noise(5, seed, update, first_sequence, T, C));
    return x;
  };
  const Floats all = noise_of(1, 2, 0, B);
  const double bound = 5 / std::sqrt(static_cast<double>(T * C));
  double sum = 0, squares = 0, largest = 0;
  for (const double x : all) sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
  const auto n = static_cast<double>(all.size());
  BOOST_TEST(largest <= bound * (1 + 1e-7));
  BOOST_TEST(largest > 0.999 * bound);
  BOOST_TEST(std::abs(sum / n) < 5 * bound / std::sqrt(3 * n));
  BOOST_TEST(std::abs(squares / n / (bound * bound / 3) - 1) < 5 * std::sqrt(0.8 / n));
  Floats parts = noise_of(1, 2, 0, 1);  // another rank or micro-batch has the other sequences
  const Floats others = noise_of(1, 2, 1, B - 1);
  parts.insert(parts.end(), others.begin(), others.end());
  BOOST_TEST((parts == all));
  BOOST_TEST((noise_of(2, 2, 0, B) != all));
  BOOST_TEST((noise_of(1, 3, 0, B) != all));
  Floats on_numbers(R * C, 0.5f);
  kernels::add_noise(stream, on_numbers.data(), R, C, kernels::embedding_noise(5, 1, 2, 0, T, C));
  for (std::size_t i = 0; i < all.size(); ++i) BOOST_REQUIRE_EQUAL(on_numbers[i], 0.5f + all[i]);
}

BOOST_AUTO_TEST_CASE(forward_and_backward) {
  CpuStream stream;
  const std::size_t B = 3, T = 5, V = 11, P = 8;
  for (const std::size_t C : {1, 13, 48, 300}) {  // 300: more than one block of columns
    const std::size_t R = B * T;
    const std::vector<std::int32_t> tokens = {0, 3, 3, 10, 3, 7, 0, 1, 3, 9, 10, 10, 2, 3, 0};  // repeated ones
    const Floats table = random_floats(V * C, 1), positions = random_floats(P * C, 2), dx = random_floats(R * C, 3);
    Floats x(R * C), plain(R * C);
    kernels::embedding_forward(stream, x.data(), tokens.data(), table.data(), positions.data(), B, T, C);
    kernels::embedding_forward(stream, plain.data(), tokens.data(), table.data(), nullptr, B, T, C);
    Floats d_table(V * C), d_positions(P * C);
    for (std::size_t r = 0; r < R; ++r)
      for (std::size_t c = 0; c < C; ++c) {
        const std::size_t token = static_cast<std::size_t>(tokens[r]);
        BOOST_REQUIRE_EQUAL(plain[r * C + c], table[token * C + c]);
        BOOST_REQUIRE_EQUAL(x[r * C + c], table[token * C + c] + positions[r % T * C + c]);
        d_table[token * C + c] += dx[r * C + c];
        d_positions[r % T * C + c] += dx[r * C + c];
      }
    Floats got(V * C, 99.0f), got_positions(P * C, 99.0f);
    kernels::embedding_backward(stream, got.data(), dx.data(), tokens.data(), R, C, V, Write::overwrite);
    kernels::position_backward(stream, got_positions.data(), dx.data(), B, T, C, P, Write::overwrite);
    BOOST_TEST((got == d_table));
    BOOST_TEST((got_positions == d_positions));
    kernels::embedding_backward(stream, got.data(), dx.data(), tokens.data(), R, C, V, Write::add);
    kernels::position_backward(stream, got_positions.data(), dx.data(), B, T, C, P, Write::add);
    BOOST_TEST(relative_error(got, added(upcast(d_table), d_table)) < 5e-7);
    BOOST_TEST(relative_error(got_positions, added(upcast(d_positions), d_positions)) < 1e-7);

    // Scaled, and with a table of fp32 numbers.
    const float scale = 1.7f;
    Floats scaled(R * C), alone(R * C), d_scaled(V * C), got_scaled(V * C, 99.0f);
    kernels::embedding_forward(stream, scaled.data(), tokens.data(), table.data(), nullptr, B, T, C, nullptr, scale,
                               positions.data());
    kernels::embedding_forward(stream, alone.data(), tokens.data(), table.data(), nullptr, B, T, C, nullptr, scale);
    for (std::size_t r = 0; r < R; ++r)
      for (std::size_t c = 0; c < C; ++c) {
        const std::size_t token = static_cast<std::size_t>(tokens[r]);
        BOOST_REQUIRE_EQUAL(alone[r * C + c], scale * table[token * C + c]);
        BOOST_REQUIRE_EQUAL(scaled[r * C + c], scale * table[token * C + c] + positions[r % T * C + c]);
        d_scaled[token * C + c] += scale * dx[r * C + c];
      }
    kernels::embedding_backward(stream, got_scaled.data(), dx.data(), tokens.data(), R, C, V, Write::overwrite, scale);
    BOOST_TEST((got_scaled == d_scaled));
    // Without the rows of token 3.
    std::fill_n(d_scaled.begin() + 3 * static_cast<std::ptrdiff_t>(C), C, 0.0f);
    kernels::embedding_backward(stream, got_scaled.data(), dx.data(), tokens.data(), R, C, V, Write::overwrite, scale, 3);
    BOOST_TEST((got_scaled == d_scaled));
    // The same table in three parts.
    Floats parts(R * C), d_parts(V * C, 99.0f);
    for (const kernels::TokenRange range : {kernels::TokenRange{0, 3}, {3, 4}, {4, 11}}) {
      const std::size_t first = static_cast<std::size_t>(range.first) * C,
                        rows = static_cast<std::size_t>(range.end - range.first);
      kernels::embedding_forward(stream, parts.data(), tokens.data(), table.data() + first, nullptr, B, T, C, nullptr, scale,
                                 positions.data(), range);
      kernels::embedding_backward(stream, d_parts.data() + first, dx.data(), tokens.data(), R, C, rows, Write::overwrite, scale,
                                  3, range);
    }
    BOOST_TEST((parts == scaled));
    BOOST_TEST((d_parts == d_scaled));
  }
}
