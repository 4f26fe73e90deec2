// Optimizers that need sums over whole tensors, or whole matrices: compared with references in double, and with tensors cut
// into parts as on several ranks, which must not change a bit.
#include <cstring>
#include <functional>

#include "kernels/optimizers.hpp"
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::ExactSum;

namespace {

using Cuts = std::vector<std::size_t>;  // the beginnings of parts, and the end of the last

/// States of a tensor in either type, to be cut.
struct States {
  DType type;
  std::vector<std::vector<std::byte>> bytes;
  States(DType t, std::size_t count, std::size_t n) : type(t), bytes(count, std::vector<std::byte>(n * size_of(t))) {}
  std::vector<float> values(std::size_t k) const {
    std::vector<float> x(bytes[k].size() / size_of(type));
    for (std::size_t i = 0; i < x.size(); ++i)
      if (type == DType::f32) {
        std::memcpy(&x[i], bytes[k].data() + i * 4, 4);
      } else {
        std::uint16_t half;
        std::memcpy(&half, bytes[k].data() + i * 2, 2);
        x[i] = static_cast<float>(std::bit_cast<bf16>(half));
      }
    return x;
  }
};

const kernels::GradientNorm half{.scale = 0.5};

kernels::UpdateTarget part_of(Floats& p, States& states, const Floats& g, const Cuts& cuts, std::size_t c) {
  kernels::UpdateTarget target{.parameter = p.data() + cuts[c], .gradient = g.data() + cuts[c], .n = cuts[c + 1] - cuts[c]};
  for (std::size_t k = 0; k < states.bytes.size(); ++k)
    target.state[k] = states.bytes[k].data() + cuts[c] * size_of(states.type);
  target.norm = &half;
  target.state_type = states.type;
  target.noise = kernels::rounding_noise(RandomSite::optimizer_state, 1, 2, 3, cuts[c]);
  return target;
}

double norm_of(const Floats& x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

const kernels::LambStep lamb_step = {1e-2, 0.9, 0.99, 1e-6, 0.1, 0.3, 0.2};

/// Runs two updates of LAMB. Returns the parameters and states.
std::vector<Floats> run_lamb(std::size_t n, DType type, const Cuts& cuts) {
  CpuStream stream;
  Floats p = random_floats(n, 1);
  States states(type, 2, n);
  for (const std::uint32_t seed : {5u, 6u}) {
    const Floats g = random_floats(n, seed, 0.1f);
    ExactSum weights, directions;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::lamb_statistics(stream, part_of(p, states, g, cuts, c), lamb_step, weights, directions);
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::lamb(stream, part_of(p, states, g, cuts, c), lamb_step, weights, directions);
  }
  return {p, states.values(0), states.values(1)};
}

/// Runs two updates of Adafactor on a matrix. Returns the parameters and factors.
std::vector<Floats> run_adafactor(std::size_t R, std::size_t C, const Cuts& cuts) {
  CpuStream stream;
  Floats p = random_floats(R * C, 1), rows(R), columns(C);
  States none(DType::f32, 0, R * C);
  for (const std::uint32_t seed : {5u, 6u}) {
    Floats g = random_floats(R * C, seed, 0.1f);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] *= std::ldexp(1.0f, -static_cast<int>(i / C % 24));  // rows of all sizes
    const kernels::GradientNorm norm{.norm = norm_of(g), .scale = 0.5};
    std::vector<std::int64_t> all(kernels::FactorWords::count(R, C)), words(all.size());
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {  // like ranks; their words are added up
      std::fill(words.begin(), words.end(), 99);
      kernels::factor_squares(stream, g.data() + cuts[c], cuts[c], cuts[c + 1] - cuts[c], R, C, norm,
                              {words.data(), words.data() + 2 * R});
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += words[i];
    }
    std::vector<std::int64_t> mean(kernels::factor_mean_words);
    kernels::update_factors(stream, rows.data(), columns.data(), R, C, norm, 0.7, {all.data(), all.data() + 2 * R},
                            mean.data());
    for (std::int64_t& word : mean) word *= 3;  // summed up over ranks
    const kernels::AdafactorFactors factors = {rows.data(), columns.data(), mean.data(), C};
    ExactSum weights, directions;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::adafactor_statistics(stream, part_of(p, none, g, cuts, c), cuts[c], factors, directions);
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::adafactor(stream, part_of(p, none, g, cuts, c), cuts[c], factors, 0.001,
                         {&weights, &directions, static_cast<double>(R * C), 0.01, 1, 1});
  }
  return {p, rows, columns};
}

std::vector<Floats> run_adafactor_vector(std::size_t n, DType type, const Cuts& cuts) {
  CpuStream stream;
  Floats p = random_floats(n, 1);
  States states(type, 1, n);
  for (const std::uint32_t seed : {5u, 6u}) {
    const Floats g = random_floats(n, seed, 0.1f);
    ExactSum weights, directions;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::adafactor_vector_statistics(stream, part_of(p, states, g, cuts, c), 0.7, directions);
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      kernels::adafactor_vector(stream, part_of(p, states, g, cuts, c), 0.001, {&weights, &directions, 1, 0.01, 1, 1});
  }
  return {p, states.values(0)};
}

}  // namespace

BOOST_AUTO_TEST_CASE(lamb_is_its_algorithm) {
  const std::size_t n = 9003;
  const std::vector<Floats> mine = run_lamb(n, DType::f32, {0, n});
  Doubles p = upcast(random_floats(n, 1)), m(n), v(n), r(n);
  for (const std::uint32_t seed : {5u, 6u}) {
    const Floats g = random_floats(n, seed, 0.1f);
    double weights = 0, directions = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double gradient = 0.5 * static_cast<double>(g[i]);
      m[i] = 0.9 * m[i] + 0.1 * gradient;
      v[i] = 0.99 * v[i] + 0.01 * gradient * gradient;
      r[i] = m[i] / 0.3 / (std::sqrt(v[i] / 0.2) + 1e-6) + 0.1 * p[i];
      weights += p[i] * p[i], directions += r[i] * r[i];
    }
    for (std::size_t i = 0; i < n; ++i) p[i] -= 1e-2 * std::sqrt(weights / directions) * r[i];
  }
  BOOST_TEST(relative_error(mine[0], p) < 1e-6);
  BOOST_TEST(relative_error(mine[1], m) < 1e-6);
  BOOST_TEST(relative_error(mine[2], v) < 1e-6);
}

BOOST_AUTO_TEST_CASE(adafactor_is_its_algorithm) {
  const std::size_t R = 67, C = 530;
  const std::vector<Floats> mine = run_adafactor(R, C, {0, R * C});
  Doubles p = upcast(random_floats(R * C, 1)), rows(R), columns(C), u(R * C);
  for (const std::uint32_t seed : {5u, 6u}) {
    const Floats g = random_floats(R * C, seed, 0.1f);
    const auto gradient = [&](std::size_t i) {
      return 0.5 * std::ldexp(static_cast<double>(g[i]), -static_cast<int>(i / C % 24));
    };
    Doubles row(R), column(C);
    for (std::size_t i = 0; i < R * C; ++i) {
      row[i / C] += gradient(i) * gradient(i) / static_cast<double>(C);
      column[i % C] += gradient(i) * gradient(i) / static_cast<double>(R);
    }
    double mean = 0, squares = 0;
    for (std::size_t r = 0; r < R; ++r) rows[r] += 0.7 * (row[r] - rows[r]), mean += rows[r] / static_cast<double>(R);
    for (std::size_t c = 0; c < C; ++c) columns[c] += 0.7 * (column[c] - columns[c]);
    for (std::size_t i = 0; i < R * C; ++i) {
      const double second = rows[i / C] * columns[i % C] / std::max(mean, 0x1p-23);
      u[i] = gradient(i) / std::sqrt(std::max(second, 0x1p-46));
      squares += u[i] * u[i];
    }
    const double size = 0.01 / std::max(1.0, std::sqrt(squares / static_cast<double>(R * C)));
    for (std::size_t i = 0; i < R * C; ++i) p[i] = p[i] * 0.999 - size * u[i];
  }
  BOOST_TEST(relative_error(mine[0], p) < 1e-6);
  BOOST_TEST(relative_error(mine[1], rows) < 1e-6);
  BOOST_TEST(relative_error(mine[2], columns) < 1e-6);
  // Rows with gradients of only 2^-23 of the largest are as exact as others.
  for (std::size_t r = 0; r < R; ++r) BOOST_TEST(std::abs(mine[1][r] / rows[r] - 1) < 1e-6);
}

BOOST_AUTO_TEST_CASE(no_cut_changes_a_bit) {
  const std::size_t n = 20011, R = 31, C = 700;
  const Cuts whole = {0, n}, cut = {0, 16, 4096, 4112, 9008, 16000, n};
  for (const DType type : {DType::f32, DType::bf16}) {
    BOOST_CHECK((run_lamb(n, type, whole) == run_lamb(n, type, cut)));
    BOOST_CHECK((run_adafactor_vector(n, type, whole) == run_adafactor_vector(n, type, cut)));
  }
  const std::vector<Floats> matrix = run_adafactor(R, C, {0, R * C});
  BOOST_CHECK((matrix == run_adafactor(R, C, {0, 16, 704, 2800, 2816, 10000, R * C})));
  BOOST_CHECK((matrix == run_adafactor(R, C, {0, C, 2 * C, R * C})));
}

BOOST_AUTO_TEST_CASE(newton_schulz_makes_singular_values_about_one) {
  CpuStream stream;
  for (const auto& [R, C] : {std::pair<std::size_t, std::size_t>{24, 60}, {60, 24}, {33, 33}, {1, 7}, {7, 1}}) {
    Floats x = random_floats(R * C, 3);
    // The reference: the same iteration in double.
    const std::size_t n = std::min(R, C), m = std::max(R, C);
    const auto at = [&, R = R, C = C ](auto& values, std::size_t i, std::size_t j) -> auto& {
      return R <= C ? values[i * C + j] : values[j * C + i];  // row i of n, column j of m
    };
    Doubles X = upcast(x), next(R * C), gram(n * n), poly(n * n);
    const double norm = norm_of(x);
    for (double& value : X) value /= norm;
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          gram[i * n + j] = 0;
          for (std::size_t k = 0; k < m; ++k) gram[i * n + j] += at(X, i, k) * at(X, j, k);
        }
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          double square = 0;
          for (std::size_t k = 0; k < n; ++k) square += gram[i * n + k] * gram[k * n + j];
          poly[i * n + j] = -4.7750 * gram[i * n + j] + 2.0315 * square + (i == j ? 3.4445 : 0);
        }
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < m; ++j) {
          at(next, i, j) = 0;
          for (std::size_t k = 0; k < n; ++k) at(next, i, j) += poly[i * n + k] * at(X, k, j);
        }
      std::swap(X, next);
    }
    Floats scratch(kernels::newton_schulz_scratch(R, C));
    kernels::newton_schulz(stream, x.data(), R, C, scratch.data());
    BOOST_TEST(relative_error(x, X) < 2e-5, R << " x " << C);
    // Singular values between 0.5 and 1.5: so is the mean square of a row of the smaller side.
    double mean = 0;
    for (const double value : X) mean += value * value / static_cast<double>(n);
    BOOST_TEST((mean > 0.4 && mean < 1.6), mean);
  }
  Floats zero(30), scratch(kernels::newton_schulz_scratch(5, 6));
  kernels::newton_schulz(stream, zero.data(), 5, 6, scratch.data());
  BOOST_TEST((zero == Floats(30)));
}
