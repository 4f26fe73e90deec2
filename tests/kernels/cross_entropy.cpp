// Compares softmax and cross-entropy with double precision. Tolerance: a sum of V terms in fp32 and a logarithm.
#include "kernels/loss_sum.hpp"
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

/// Converts row-major logits to pieces of the vocabulary, whose rows are aligned and padded with NaN, or back.
Floats cut(const Floats& whole, std::size_t R, std::size_t V, std::size_t piece, std::size_t alignment, bool back = false) {
  Floats out(R * (back ? V : round_up(V, alignment)), NAN);
  for (std::size_t r = 0; r < R; ++r)
    for (std::size_t v = 0; v < V; ++v) {
      const std::size_t begin = v / piece * piece, stride = round_up(std::min(piece, V - begin), alignment),
                        in_piece = R * begin + r * stride + v - begin;
      if (back)
        out[r * V + v] = whole[in_piece];
      else
        out[in_piece] = whole[r * V + v];
    }
  return out;
}

struct Result {
  Floats loss, logits;  // `logits`: the gradients, or the logits after the call
};

template <class E>
Result run(const Floats& logits, const std::vector<std::int32_t>& targets, std::size_t V, std::size_t piece, float scale,
           std::size_t alignment = 1) {
  CpuStream stream;
  const std::size_t R = targets.size();
  const Floats pieces = cut(logits, R, V, piece, alignment);
  std::vector<E> values(pieces.size());
  std::transform(pieces.begin(), pieces.end(), values.begin(), [](float x) { return E(x); });
  std::vector<kernels::SoftmaxStats> stats(R, {99.0f, 99.0f, 99.0f});
  Floats loss(R, 99.0f);
  const kernels::Logits<E> at = {values.data(), stats.data(), targets.data(), R, V, piece, alignment};
  for (std::size_t begin = 0; begin < V; begin += piece) kernels::cross_entropy(stream, loss.data(), at, begin);
  for (std::size_t begin = 0; begin < V && scale != 0; begin += piece) kernels::logit_gradient(stream, at, begin, scale);
  return {loss, cut(Floats(values.begin(), values.end()), R, V, piece, alignment, true)};
}

template <class E>
Floats rounded(const Floats& x) {
  Floats out;
  for (const float value : x) out.push_back(static_cast<float>(E(value)));
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(loss_and_gradient) {
  for (const std::size_t V : {1, 2, 31, 32, 211}) {
    const std::size_t R = 5;
    const std::vector<std::int32_t> targets = {0, -1, static_cast<std::int32_t>(V - 1), static_cast<std::int32_t>(V / 2), -7};
    const Floats logits = random_floats(R * V, 1, 20.0f);
    const Doubles L = upcast(logits);
    const auto [loss_alone, unchanged] = run<float>(logits, targets, V, V, 0.0f);
    const auto [loss, gradient] = run<float>(logits, targets, V, V, 0.25f);
    BOOST_TEST((unchanged == logits));
    BOOST_TEST((loss == loss_alone));
    for (const std::size_t piece : {V, std::size_t{16}}) {  // aligned rows: the same bits
      const auto [dense_loss, dense_gradient] = run<float>(logits, targets, V, piece, 0.25f);
      const auto [aligned_loss, aligned_gradient] = run<float>(logits, targets, V, piece, 0.25f, 8);
      BOOST_TEST((aligned_loss == dense_loss));
      BOOST_TEST((aligned_gradient == dense_gradient));
    }
    for (const std::size_t piece : {1, 16, 30}) {  // in pieces: the same except for the order of the sum
      const auto [cut_loss, cut_gradient] = run<float>(logits, targets, V, piece, 0.25f);
      for (std::size_t r = 0; r < R; ++r) BOOST_TEST(std::abs(cut_loss[r] - loss[r]) < 5e-6);
      for (std::size_t i = 0; i < R * V; ++i) BOOST_REQUIRE_SMALL(cut_gradient[i] - gradient[i], 1e-6f);
      // In 16 bits: the rounded result of fp32 on rounded logits.
      const auto compare = [&]<class E>(E) {
        const auto [low_loss, low_gradient] = run<E>(logits, targets, V, piece, 0.25f);
        const auto [wide_loss, wide_gradient] = run<float>(rounded<E>(logits), targets, V, piece, 0.25f);
        BOOST_TEST((low_loss == wide_loss));
        BOOST_TEST((low_gradient == rounded<E>(wide_gradient)));
      };
      compare(bf16());
      compare(f16());
    }
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

// TRL's entropy and mean_token_accuracy, in doubles. The sums are exact, so that they do not depend on how rows are divided.
BOOST_AUTO_TEST_CASE(predictions) {
  const std::size_t R = 7, V = 61;
  const std::vector<std::int32_t> targets = {0, -1, 60, 30, 17, -100, 5};
  Floats logits = random_floats(R * V, 3, 20.0f);
  logits[2 * V + 60] = 90, logits[4 * V + 17] = logits[4 * V + 3] = 80;  // the likeliest targets; one of them is not alone
  const auto sum_of = [&](std::size_t first, std::size_t rows, std::size_t piece) {
    CpuStream stream;
    Floats values = cut(Floats(logits.begin() + static_cast<std::ptrdiff_t>(first * V),
                               logits.begin() + static_cast<std::ptrdiff_t>((first + rows) * V)),
                        rows, V, piece, 1);
    std::vector<kernels::SoftmaxStats> stats(rows);
    Floats loss(rows);
    const kernels::Logits<float> at = {values.data(), stats.data(), targets.data() + first, rows, V, piece};
    for (std::size_t begin = 0; begin < V; begin += piece) kernels::cross_entropy(stream, loss.data(), at, begin);
    kernels::LossSum sum;
    kernels::add_predictions(stream, sum, at);
    return sum;
  };
  double entropy = 0;
  for (std::size_t r = 0; r < R; ++r) {
    if (targets[r] < 0) continue;
    for (std::size_t v = 0; v < V; ++v) {
      const double loss = loss_of_row(upcast(logits), r, V, static_cast<std::int32_t>(v));
      entropy += loss * std::exp(-loss);
    }
  }
  for (const std::size_t piece : {V, std::size_t{16}}) {
    const kernels::LossSum all = sum_of(0, R, piece);
    BOOST_TEST(std::abs(all.entropy() - entropy) < 2e-5);
    BOOST_TEST(all.likeliest == 2);
    BOOST_TEST(all.value() == 0);
    kernels::LossSum parts = sum_of(0, 3, piece);
    parts += sum_of(3, R - 3, piece);
    BOOST_TEST((parts.entropy_units == all.entropy_units && parts.entropy_fractions == all.entropy_fractions));
  }
}

namespace {

/// The loss of a row with terms, in double precision.
double loss_of_row(const Doubles& logits, std::size_t r, std::size_t V, std::int32_t target, const kernels::LossTerms& terms) {
  if (target < 0) return 0;
  const double likelihood = loss_of_row(logits, r, V, target),
               log_z = likelihood + logits[r * V + static_cast<std::size_t>(target)];
  double mean = 0;
  for (std::size_t v = 0; v < V; ++v) mean += logits[r * V + v] / static_cast<double>(V);
  return (1 - terms.label_smoothing) * likelihood + terms.label_smoothing * (log_z - mean) + terms.z_loss * log_z * log_z;
}

template <class E>
Result run_with_terms(const Floats& logits, const std::vector<std::int32_t>& targets, std::size_t V, std::size_t piece,
                      float scale, const kernels::LossTerms& terms) {
  CpuStream stream;
  const std::size_t R = targets.size();
  const Floats pieces = cut(logits, R, V, piece, 1);
  std::vector<E> values(pieces.size());
  std::transform(pieces.begin(), pieces.end(), values.begin(), [](float x) { return E(x); });
  std::vector<kernels::SoftmaxStats> stats(R);
  Floats loss(R, 99.0f);
  const kernels::Logits<E> at = {values.data(), stats.data(), targets.data(), R, V, piece};
  for (std::size_t begin = 0; begin < V; begin += piece) kernels::cross_entropy(stream, loss.data(), at, begin);
  for (std::size_t begin = 0; begin < V; begin += piece) kernels::logit_gradient(stream, at, begin, scale, terms, loss.data());
  return {loss, cut(Floats(values.begin(), values.end()), R, V, piece, 1, true)};
}

}  // namespace

// Tolerance: as above, times the factor 1 + 2 z_loss logZ; the mean of the logits is a sum of V terms.
BOOST_AUTO_TEST_CASE(terms_of_the_loss_in_training) {
  for (const kernels::LossTerms terms :
       {kernels::LossTerms{0.1f, 0}, kernels::LossTerms{0, 1e-2f}, kernels::LossTerms{0.3f, 1e-3f}})
    for (const std::size_t V : {2, 31, 211}) {
      const std::size_t R = 4;
      const std::vector<std::int32_t> targets = {0, -1, static_cast<std::int32_t>(V - 1), static_cast<std::int32_t>(V / 2)};
      const Floats logits = random_floats(R * V, 1, 8.0f);
      const Doubles L = upcast(logits);
      const Doubles want = numeric_gradient(
          [&](const Doubles& at) {
            double total = 0;
            for (std::size_t r = 0; r < R; ++r) total += 0.25 * loss_of_row(at, r, V, targets[r], terms);
            return total;
          },
          L);
      for (const std::size_t piece : {V, std::size_t{16}}) {
        const auto [loss, gradient] = run_with_terms<float>(logits, targets, V, piece, 0.25f, terms);
        for (std::size_t r = 0; r < R; ++r) BOOST_TEST(std::abs(loss[r] - loss_of_row(L, r, V, targets[r], terms)) < 2e-5);
        for (std::size_t i = 0; i < R * V; ++i) BOOST_REQUIRE_SMALL(gradient[i] - want[i], 1e-6);
        const auto compare = [&]<class E>(E) {
          const auto [low_loss, low_gradient] = run_with_terms<E>(logits, targets, V, piece, 0.25f, terms);
          const auto [wide_loss, wide_gradient] = run_with_terms<float>(rounded<E>(logits), targets, V, piece, 0.25f, terms);
          BOOST_TEST((low_loss == wide_loss));
          BOOST_TEST((low_gradient == rounded<E>(wide_gradient)));
        };
        compare(bf16());
        compare(f16());
      }
    }
}

// The numbers that torch.nn.CrossEntropyLoss(label_smoothing=0.2), with a mean over the targets that count, gives in fp64.
BOOST_AUTO_TEST_CASE(label_smoothing_is_that_of_pytorch) {
  const Floats logits = {0.5f, -1.25f, 2.0f, 0.0f, 3.5f, 1.5f, 0.25f, -0.75f, 4.0f, -2.0f, 0.125f, 0.25f, 0.5f, 1.0f, 2.0f};
  const auto [loss, gradient] = run_with_terms<float>(logits, {2, -1, 4}, 5, 5, 0.5f, {.label_smoothing = 0.2f});
  const double losses[] = {1.9813745551001192, 0.0, 0.8963551905457414}, gradients[] = {-0.0010228894823700527,
                                                                                        -0.01670227267005653,
                                                                                        -0.33495049120654036,
                                                                                        -0.008489800638302354,
                                                                                        0.3611654539972693,
                                                                                        0,
                                                                                        0,
                                                                                        0,
                                                                                        0,
                                                                                        0,
                                                                                        0.019974946000064855,
                                                                                        0.025297548221403402,
                                                                                        0.038163203229920575,
                                                                                        0.07589491033722445,
                                                                                        -0.15933060778861335};
  for (std::size_t r = 0; r < 3; ++r) BOOST_TEST(std::abs(loss[r] - losses[r]) < 1e-6);
  for (std::size_t i = 0; i < 15; ++i) BOOST_TEST(std::abs(gradient[i] - gradients[i]) < 1e-6);
}

BOOST_AUTO_TEST_CASE(extreme_logits_stay_finite_and_nan_shows) {
  const auto [loss, logits] = run<float>({1e30f, -1e30f, 0, 3e38f, 3e38f, 3e38f, 0, NAN, 1}, {0, 0, 1}, 3, 3, 1.0f);
  BOOST_TEST(loss[0] == 0.0f);
  BOOST_TEST(std::abs(loss[1] - std::log(3.0)) < 1e-6);
  BOOST_TEST(logits[1] == 0.0f);
  BOOST_TEST(std::isnan(loss[2]));
}

BOOST_AUTO_TEST_CASE(losses_are_added_exactly) {
  CpuStream stream;
  kernels::LossSum total;
  const auto add = [&](const Floats& losses) { kernels::add_losses(stream, total, losses.data(), losses.size()); };
  add({});
  BOOST_TEST(total.value() == 0.0);
  add({1000000.0f, 1.0f, -1000000.0f, 0.5f, 0x1p-52f});
  BOOST_TEST(total.value() == 1.5 + 0x1p-52);
  add({-2.0f, -0x1p-52f});
  BOOST_TEST(total.value() == -0.5);
  add({3e38f, -1e30f, 0x1p21f});  // the loss of a token is limited
  BOOST_TEST(total.value() == 0x1p20 - 0.5);
  BOOST_TEST(total.non_finite == 0);
  add({INFINITY, 1.0f, -INFINITY, NAN});
  BOOST_TEST(total.non_finite == 3);
  BOOST_TEST(std::isnan(total.value()));
}

BOOST_AUTO_TEST_CASE(a_sum_of_losses_does_not_depend_on_its_order) {
  CpuStream stream;
  Floats losses = random_floats(1000, 1);
  for (std::size_t i = 0; i < losses.size(); ++i) losses[i] *= std::ldexp(1.0f, static_cast<int>(i % 40) - 30);
  kernels::LossSum whole;
  kernels::add_losses(stream, whole, losses.data(), losses.size());
  kernels::LossSum parts[3], all;
  const std::size_t ends[] = {0, 333, 334, losses.size()};
  for (const std::size_t i : {2u, 0u, 1u}) kernels::add_losses(stream, parts[i], &losses[ends[i]], ends[i + 1] - ends[i]);
  for (const std::size_t i : {1u, 2u, 0u}) all += parts[i];
  BOOST_TEST(all.value() == whole.value());
  for (int i = 0; i < 3; ++i)  // as an all-reduce of integers leaves it
    if (i > 0) parts[0].units += parts[i].units, parts[0].fractions += parts[i].fractions;
  BOOST_TEST(parts[0].value() == whole.value());
  double in_double = 0;
  for (const float loss : losses) in_double += static_cast<double>(loss);
  BOOST_TEST(std::abs(whole.value() - in_double) < 1e-9);
}
