// Compares every row body on the GPU with the same body on the CPU. A case is one array of floats with inputs and outputs: both
// devices get a copy, run the body on it, and the whole arrays are compared. Exits with 77 if there is no device.
#include "kernels/cuda_twin.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/cuda_twin_cpu.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"
#include "kernels/rows/cuda.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace k = fsdp::kernels;

namespace {

template <class Body>
void run_on_cpu(const Body& body, std::size_t rows) {
  k::launch(cpu(), body, rows);
}
template <class Rule, class State>
void run_on_cpu(const k::ElementUpdate<Rule, State>& body, std::size_t rows) {
  k::update_on_cpu(cpu(), body, rows);
}
template <class Rule>
void run_on_cpu(const k::NarrowUpdate<Rule>& body, std::size_t rows) {
  k::update_on_cpu(cpu(), body, rows);
}

/// Whether numbers of a GPU are within `tolerance` times the largest value of those of the CPU; also returns the difference.
template <class E>
std::pair<bool, double> near(const E* got, const E* host, std::size_t n, float tolerance) {
  double error = 0, size = 0;
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    const auto a = static_cast<float>(got[i]), b = static_cast<float>(host[i]);
    if (!std::isfinite(b)) {  // some 16-bit numbers of the input are not
      finite = finite && std::memcmp(&got[i], &host[i], sizeof(E)) == 0;
      continue;
    }
    finite = finite && std::isfinite(a);
    error = std::max(error, std::abs(static_cast<double>(a) - static_cast<double>(b)));
    size = std::max(size, std::abs(static_cast<double>(b)));
  }
  return {finite && error <= tolerance * size, size > 0 ? error / size : 0};
}

/// make(floats, tokens) gives the body with its pointers; `n` floats, of which prepare(floats) changes some. From number
/// `values` on they are numbers of type E. Tolerances, `of_type` for these, are relative to the largest value.
template <class E, class Make, class Prepare>
void compare(const char* name, std::size_t n, std::size_t values, std::size_t rows, float tolerance, float of_type, Make make,
             Prepare prepare) {
  std::vector<float> start = numbers(n);
  prepare(start.data());
  std::vector<std::int32_t> tokens(64);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % 7 == 3 ? 2 : static_cast<std::int32_t>(i * 5 % 11);

  std::vector<float> host = start;
  run_on_cpu(make(host.data(), tokens.data()), rows);
  const DeviceCopy<float> device(start);
  const DeviceCopy<std::int32_t> device_tokens(tokens);
  check(k::run_rows_cuda(nullptr, make(device.data(), device_tokens.data()), rows), name);
  check(cudaDeviceSynchronize(), name);
  const std::vector<float> got = device.fetch();

  const auto [floats_ok, error] = near(got.data(), host.data(), values, tolerance);
  const std::size_t count = (n - values) * sizeof(float) / sizeof(E);
  const auto [values_ok, error_of_type] =
      near(reinterpret_cast<const E*>(got.data() + values), reinterpret_cast<const E*>(host.data() + values), count, of_type);
  const bool ran = host != start;
  const bool ok = ran && floats_ok && values_ok;
  std::printf("%-24s relative difference %.1e, allowed %.1e", name, error, static_cast<double>(tolerance));
  if (count > 0) std::printf(", of values %.1e, allowed %.1e", error_of_type, static_cast<double>(of_type));
  std::puts(ok ? "" : "  FAILED");
  if (!ok) ++failures;
}
template <class Make, class Prepare>
void compare(const char* name, std::size_t n, std::size_t rows, float tolerance, Make make, Prepare prepare) {
  compare<float>(name, n, n, rows, tolerance, tolerance, make, prepare);
}
template <class Make>
void compare(const char* name, std::size_t n, std::size_t rows, float tolerance, Make make) {
  compare(name, n, rows, tolerance, make, [](float*) {});
}

template <class E>
E* as(float* x) {
  return reinterpret_cast<E*>(x);
}

/// Bodies whose lanes have elements by the width of a row, for rows of C elements of E. The first `lead` elements of each array
/// are skipped, so that no row is aligned to packs if `lead` is odd. Sums over rows have three partitions.
template <class E>
void compare_width(std::size_t C, std::size_t lead) {
  constexpr std::size_t R = 7;
  constexpr float rounding = 2e-6f, of_type = sizeof(E) == 2 ? 1e-2f : rounding;  // one step of the largest number in bf16
  // The layout: room for outputs and sums in fp32, then for inputs of type E.
  const std::size_t n = R * C, floats = 8 * C + 2 * R + 32, values = lead + 3 * n + 2 * C;
  const auto input = [=](float* x) { return as<E>(x + floats / 4 * 4) + lead; };
  const auto prepare = [=](float* x) {
    std::fill_n(x + 6 * C, 2 * R, 0.75f);  // means and factors
    const std::vector<float> from = numbers(values);
    for (std::size_t i = lead; i < values; ++i) input(x)[i - lead] = E(from[i]);
  };
  const auto check_width = [&](const char* what, std::size_t rows, auto make) {
    const std::string name = std::string(what) + " of " + std::to_string(C) + (lead ? ", not aligned" : "");
    compare<E>(name.c_str(), floats + values, floats / 4 * 4, rows, rounding, of_type, make, prepare);
  };
  check_width("layer norm", R, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::LayerNormForward<E>{in + n, x, in, in + 3 * n, in + 3 * n + C, C, 1e-5f};
  });
  check_width("rms norm", R, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::RmsNormForward<E>{in + n, x, in, in + 3 * n, C, 1e-5f};
  });
  check_width("layer norm backward", 3, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::LayerNormBackward<E>{in, x, in + n, in + 2 * n, x + 6 * C, in + 3 * n, R, C, 3, true};
  });
  check_width("rms norm backward", 3, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::RmsNormBackward<E>{in, x, in + n, in + 2 * n, x + 6 * C, in + 3 * n, R, C, 3, true};
  });
  check_width("batch norm", R, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::BatchNormForward<E>{in + n, in, x + 6 * C, in + 3 * n, in + 3 * n + C, C};
  });
  check_width("batch norm sums", 3, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::BatchNormSums<E>{x, in + n, in, x + 6 * C, R, C, 3};
  });
  check_width("centered squares", 3, [=](float* x, std::int32_t*) {
    return k::CenteredSquares<E>{x, input(x), x + 6 * C, R, C, 3};
  });
  check_width("bias", R, [=](float* x, std::int32_t*) { return k::AddBias<E>{input(x), input(x) + 3 * n, C}; });
  check_width("residual", R, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::AddResidual<E>{in, in + n, in + 2 * n, in + 3 * n, C, {}};
  });
  check_width("bias and relu", R, [=](float* x, std::int32_t*) {
    E* const in = input(x);
    return k::BiasActivation<k::ReluActivation, E>{in, in + n, in + 3 * n, C};
  });
  if (C >= 4 && C <= 1028)  // heads of C numbers, which are aligned in some of the rows
    check_width("head norm backward", 3, [=](float* x, std::int32_t*) {
      E* const in = input(x);
      return k::HeadNormBackward<E>{in, x, in + n, x + 6 * C, in + 3 * n, 3, 2, C, 2 * C + C / 4, 3};
    });
}

/// The loss and the gradients of logits of one or two pieces in one kernel have the bits of the kernels for single pieces, also
/// for rows without a target and for NaNs.
template <class E>
void compare_losses(std::size_t V, std::size_t piece) {
  constexpr std::size_t R = 6;
  const std::vector<std::int32_t> targets = {
      0, -1, static_cast<std::int32_t>(V - 1), static_cast<std::int32_t>(piece / 2), static_cast<std::int32_t>(V / 2), 0};
  std::vector<float> start = numbers(5 * R + R * V);
  const std::vector<float> from = numbers(R * V);
  for (std::size_t i = 0; i < R * V; ++i) as<E>(start.data() + 5 * R)[i] = E(6 * from[i]);
  as<E>(start.data() + 5 * R)[5 * piece] = E(NAN);
  const DeviceCopy<float> apart(start), together(start);
  const DeviceCopy<std::int32_t> device_targets(targets);
  const std::int32_t* const t = device_targets.data();
  const auto logits = [](const DeviceCopy<float>& x) { return as<E>(x.data() + 5 * R); };
  auto* const stats = reinterpret_cast<k::SoftmaxStats*>(apart.data() + R);
  for (std::size_t begin = 0; begin < V; begin += piece) {
    const std::size_t columns = std::min(piece, V - begin);
    check(k::run_rows_cuda(nullptr,
                           k::CrossEntropy<E>{apart.data(), stats, logits(apart) + R * begin, t, begin, columns, columns,
                                              begin + columns == V},
                           R),
          "cross entropy");
  }
  for (std::size_t begin = 0; begin < V; begin += piece) {
    const std::size_t columns = std::min(piece, V - begin);
    check(k::run_rows_cuda(nullptr, k::LogitGradient<E>{logits(apart) + R * begin, stats, t, begin, columns, columns, 0.5f}, R),
          "logit gradient");
  }
  const std::size_t rest = V - std::min(piece, V);
  check(k::run_rows_cuda(nullptr,
                         k::LossAndGradient<E>{together.data(),
                                               reinterpret_cast<k::SoftmaxStats*>(together.data() + R),
                                               t,
                                               {logits(together), 0, V - rest, V - rest},
                                               {logits(together) + R * (V - rest), V - rest, rest, rest},
                                               0.5f},
                         R),
        "loss and gradient");
  check(cudaDeviceSynchronize(), "losses");
  const std::vector<float> two = apart.fetch(), one = together.fetch();
  const bool same = std::memcmp(one.data(), two.data(), R * sizeof(float)) == 0 &&
                    std::memcmp(&one[5 * R], &two[5 * R], R * V * sizeof(E)) == 0 &&
                    std::memcmp(&one[5 * R], &start[5 * R], R * V * sizeof(E)) != 0;
  std::printf("loss and gradients of %zu columns in pieces of %zu: %s\n", V, piece, same ? "same bits" : "FAILED");
  if (!same) ++failures;
}

/// Exact sums of squares: all integers must agree. Exponents differ within the blocks of 4,096 squares and between them, so
/// that digits change within a row.
void compare_squares() {
  constexpr std::size_t block = k::Squares::block, most = 5 * block + 77, row = 8 * block;
  const auto bad = [](std::size_t n, std::size_t first, bool non_finite) {
    std::vector<float> x = numbers(first + n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto b = static_cast<int>(i / block), spread = static_cast<int>(i * 7919 % 97);
      x[first + i] = std::ldexp(x[first + i], std::array{-100, 20, 21, -110, 126}[static_cast<std::size_t>(b % 5)] - spread);
    }
    if (non_finite && n > 0) x[first + n / 2] = INFINITY, x[first + n / 3] = NAN, x[first + n - 1] = -INFINITY;
    std::vector<k::ExactSum> host(1);
    k::launch(cpu(), k::Squares{host.data(), x.data() + first, n, row}, (n + row - 1) / row);
    const DeviceCopy<float> on_device(x);
    const DeviceCopy<k::ExactSum> sum(std::vector<k::ExactSum>(1));
    check(k::run_rows_cuda(nullptr, k::Squares{sum.data(), on_device.data() + first, n, row}, (n + row - 1) / row), "squares");
    const std::vector<k::ExactSum> got = sum.fetch();
    return std::memcmp(got.data(), host.data(), sizeof(k::ExactSum)) != 0;
  };
  int wrong = 0;
  for (std::size_t n = 0; n <= block; n += n < 66 ? 1 : 371) wrong += bad(n, n % 5, n % 2 == 1);
  for (const std::size_t n : {block - 1, block, block + 1, 2 * block, most})
    for (const std::size_t first : {0, 1, 3}) wrong += bad(n, first, false) + bad(n, first, true);
  std::printf("%-24s %s\n", "squares", wrong == 0 ? "same integers" : "FAILED");
  if (wrong > 0) ++failures;
}

/// Infinities and NaNs are counted.
void count_non_finite() {
  std::vector<float> x = numbers(3 * k::CountNonFinite::block + 77);
  x[5] = INFINITY, x[k::CountNonFinite::block] = NAN, x.back() = -INFINITY;
  const DeviceCopy<float> on_device(x);
  const DeviceCopy<k::ExactSum> sum(std::vector<k::ExactSum>(1));
  check(k::run_rows_cuda(nullptr, k::CountNonFinite{sum.data(), on_device.data(), x.size()}, 4), "non-finite");
  const bool right = sum.fetch()[0].non_finite == 3;
  std::printf("%-24s %s\n", "non-finite", right ? "counted" : "FAILED");
  if (!right) ++failures;
}

/// Rounding and squares in one kernel, and one after the other on the CPU: the same numbers, and the same sum of squares. Its
/// blocks differ, so its digits below the highest three may differ.
void compare_rounding_and_squares() {
  constexpr std::size_t n = 3 * k::Squares::block + 77, first = k::Squares::block - 5;
  std::vector<float> wide = numbers(n);
  std::vector<std::uint16_t> kept(n, 0x3f81);
  for (std::size_t i = 0; i < n; ++i) wide[i] = std::ldexp(wide[i], static_cast<int>(i / 1000) * 2 - 30);
  wide[7] = 0x1p-130f;
  for (const bool add : {false, true}) {
    const DeviceCopy<float> device_wide(wide);
    const DeviceCopy<std::uint16_t> device_kept(kept);
    const DeviceCopy<k::ExactSum> device_sum(std::vector<k::ExactSum>(1));
    const k::RoundingNoise noise = {{5, 6}, first};
    const std::size_t blocks = (first % k::Squares::block + n + k::Squares::block - 1) / k::Squares::block;
    const k::KeepAndSquare body{{add},
                                {device_wide.data(), {device_kept.data()}, device_wide.data(), n, nullptr, false, noise, {}},
                                device_sum.data(),
                                blocks,
                                2};
    check(k::run_rows_cuda(nullptr, body, (blocks + 1) / 2), "rounding and squares");
    k::ExactSum sum;
    std::vector<float> host_wide = wide;
    std::vector<std::uint16_t> host_kept = kept;
    k::round_at_random(cpu(), reinterpret_cast<bf16*>(host_kept.data()), host_wide.data(), n, noise,
                       add ? k::Write::add : k::Write::overwrite, &sum);
    const bool same = device_kept.fetch() == host_kept && device_sum.fetch()[0].value() == sum.value() && sum.value() > 0;
    std::printf("%-24s %s\n", "rounding and squares", same ? "same bits" : "FAILED");
    if (!same) ++failures;
  }
}

}  // namespace

int main() {
  skip_without_device();
  for (const std::size_t C : {1,    2,    7,    8,    31,   64,   255,  256,  257,  264,  513,   768,  1023,
                              1024, 1025, 1032, 2047, 2048, 2056, 4095, 4096, 4104, 8200, 19999, 20000})
    for (const std::size_t lead : {std::size_t{0}, std::size_t{1}}) {
      compare_width<float>(C, lead);
      compare_width<bf16>(C, lead);
    }
  for (const auto& [V, piece] :
       {std::pair<std::size_t, std::size_t>{613, 613}, {613, 600}, {1000, 520}, {2064, 2048}, {17, 9}}) {
    compare_losses<float>(V, piece);
    compare_losses<bf16>(V, piece);
  }
  // More columns than threads of a block, not a multiple of a warp. Sums have another order, so results differ by rounding.
  constexpr std::size_t R = 37, C = 613, n = R * C;
  constexpr float rounding = 2e-6f;
  using F = float*;
  using I = std::int32_t*;
  for (const bool add : {false, true}) {
    compare("layer norm backward", 3 * n + 2 * R + C + 6 * C, 3, rounding, [=](F x, I) {
      return k::LayerNormBackward<float>{x,  x + 3 * n + 2 * R + C, x + n, x + 2 * n, x + 3 * n, x + 3 * n + 2 * R, R, C, 3,
                                         add};
    });
    compare("rms norm backward", 3 * n + R + C + 3 * C, 3, rounding, [=](F x, I) {
      return k::RmsNormBackward<float>{x, x + 3 * n + R + C, x + n, x + 2 * n, x + 3 * n, x + 3 * n + R, R, C, 3, add};
    });
    for (const std::size_t block : {std::size_t{512}, std::size_t{8}, std::size_t{2}})
      compare("column finish", C + 3 * C, (C + block - 1) / block, rounding,
              [=](F x, I) { return k::ColumnFinish{x, x + C, C, block, C, 3, add}; });
    compare("position backward", 8 * C + 4 * 5 * C, 8, rounding,
            [=](F x, I) { return k::PositionBackward<float>{x, x + 8 * C, 4, 5, C, add}; });
  }
  compare("layer norm", 2 * n + 2 * R + 2 * C, R, rounding, [](F x, I) {
    return k::LayerNormForward<float>{x, x + 2 * n, x + n, x + 2 * n + 2 * R, x + 2 * n + 2 * R + C, C, 1e-5f};
  });
  compare("rms norm", 2 * n + R + C, R, rounding,
          [](F x, I) { return k::RmsNormForward<float>{x, x + 2 * n, x + n, x + 2 * n + R, C, 1e-5f}; });
  compare("head norm", n + 3 * R * 200 + 3 * R + 200, 3 * R, rounding, [](F x, I) {  // 3 heads of 200 in rows of C
    return k::HeadNormForward<float>{x, x + n, x + n + 3 * R * 200, x + n + 3 * R * 200 + 3 * R, 3, 200, C, 1e-5f};
  });
  compare("head norm backward", n + 3 * 200 + 3 * R * 200 + 3 * R + 200, 3, rounding, [](F x, I) {
    const F before = x + n + 3 * 200, stats = before + 3 * R * 200;
    return k::HeadNormBackward<float>{x, x + n, before, stats, stats + 3 * R, R, 3, 200, C, 3};
  });
  compare("batch norm backward", 3 * n + 5 * C, R, rounding, [](F x, I) {
    return k::BatchNormBackward<float>{x, x + n, x + 2 * n, x + 3 * n, x + 3 * n + 2 * C, x + 3 * n + 4 * C, C, 0.125f};
  });
  compare(
      "join moments", 10 * C, 3, rounding,
      [](F x, I) { return k::JoinMoments{x, x + 2 * C, x + 3 * C, x + 4 * C, 3, 5, C, 256, 1e-5f}; },
      [](float* x) { std::fill_n(x + 4 * C, 6 * C, 0.75f); });
  compare("column sum", 3 * C + n, 3, rounding, [](F x, I) { return k::ColumnSum<float>{x, x + 3 * C, R, C, C, 3}; });
  // Every other row of these is aligned to 16 bytes, so that its elements are assigned to other lanes.
  constexpr std::size_t even = 614;
  compare("column sum, odd rows", (3 + 9) * even, 3, 0,
          [](F x, I) { return k::ColumnSum<float>{x, x + 3 * even, 9, even, even, 3}; });
  compare("embedding", n + 16 * C, 30, 0,
          [](F x, I t) { return k::EmbeddingForward<float>{x, t, x + n, x + n + 11 * C, 5, C}; });
  compare("embedding at positions", n + 16 * C, 30, 0,
          [](F x, I t) { return k::EmbeddingForward<float>{x, t, x + n, x + n + 4 * C, 5, C, t + 3}; });
  compare("scaled embedding with sinusoids", n + 16 * C, 30, 0,
          [](F x, I t) { return k::EmbeddingForward<float>{x, t, x + n, nullptr, 5, C, nullptr, 1.7f, x + n + 11 * C}; });
  compare("embedding backward", 11 * C + n, 3, 0, [](F x, I t) { return k::EmbeddingBackward<float>{x, x + 11 * C, t, R, C}; });
  compare("embedding backward by token", 11 * C + n, R, 0, [](F x, I t) {
    return k::EmbeddingBackwardByToken<float>{x, x + 11 * C, t, R, C};
  });
  compare("add bias", n + C, R, 0, [](F x, I) { return k::AddBias<float>{x, x + n, C}; });
  compare("copy columns", 2 * n, R, 0, [](F x, I) { return k::CopyColumns<float>{x + 1, C, x + n, C, C - 2}; });
  for (const float rate : {0.0f, 0.2f}) {
    const k::DropoutMask mask = k::dropout_mask(rate, 1, 2, 3, 4, 5);
    compare("add residual", 2 * n + C, R, 0, [=](F x, I) { return k::AddResidual<float>{x, x + n, x, x + 2 * n, C, mask}; });
    if (mask.dropped) compare("dropout", n, R, 0, [=](F x, I) { return k::DropoutBody<float>{x, x, C, mask}; });
  }
  compare("gelu", 2 * n + C, R, rounding, [](F x, I) {
    return k::BiasActivation<k::GeluActivation<k::Gelu::tanh>, float>{x, x + n, x + 2 * n, C};
  });
  compare("gelu erf", 2 * n + C, R, rounding, [](F x, I) {
    return k::BiasActivation<k::GeluActivation<k::Gelu::erf>, float>{x, x + n, x + 2 * n, C};
  });
  const std::size_t blocks = (n + k::flat_block - 1) / k::flat_block;
  compare("gelu backward", 3 * n, blocks, rounding, [](F x, I) {
    return k::ActivationBackward<k::GeluActivation<k::Gelu::tanh>, float>{x, x + n, x + 2 * n, n};
  });
  compare("gelu erf backward", 3 * n, blocks, rounding, [](F x, I) {
    return k::ActivationBackward<k::GeluActivation<k::Gelu::erf>, float>{x, x + n, x + 2 * n, n};
  });
  compare("relu", 2 * n + C, R, 0, [](F x, I) { return k::BiasActivation<k::ReluActivation, float>{x, x + n, x + 2 * n, C}; });
  compare("relu backward", 3 * n, blocks, 0, [](F x, I) {
    return k::ActivationBackward<k::ReluActivation, float>{x, x + n, x + 2 * n, n};
  });
  compare("sigmoid", 2 * n + C, R, rounding, [](F x, I) {
    return k::BiasActivation<k::SigmoidActivation, float>{x, x + n, x + 2 * n, C};
  });
  compare("sigmoid backward", 3 * n, blocks, rounding, [](F x, I) {
    return k::ActivationBackward<k::SigmoidActivation, float>{x, x + n, x + 2 * n, n};
  });
  for (const bool adds : {false, true})
    compare(adds ? "multiply and add" : "multiply", 3 * n, blocks, rounding, [=](F x, I) {
      return k::Multiply<float>{x, x + n, x + 2 * n, n, adds};
    });
  compare("swiglu", 3 * n, blocks, rounding, [](F x, I) { return k::SwigluForward<float>{x, x + n, x + 2 * n, n}; });
  compare("swiglu backward", 5 * n, blocks, rounding,
          [](F x, I) { return k::SwigluBackward<float>{x, x + n, x + 2 * n, x + 3 * n, x + 4 * n, n}; });
  compare("add scaled", 2 * n, blocks, rounding, [](F x, I) { return k::AddScaled{x, x + n, n - 3, 0.3f}; });
  compare("clip values", n, blocks, 0, [](F x, I) { return k::ClipValues{x, n - 3, 0.25f}; });
  compare("fill", n, blocks, 0, [](F x, I) { return k::Fill<float>{x, n - 3, 1.5f}; });
  for (const bool add : {false, true}) {
    compare("sum over 3 ranks", 4 * n, blocks, 0,
            [=](F x, I) { return k::SumRanks<float, float>{x, x + n, x + 2 * n, n, n - 3, 3, 1, add}; });
    for (const std::size_t apart : {n, n / 8 * 8})  // without and with packs of 16 bytes
      compare("sum over 4 ranks", 5 * n, blocks, 0, [=](F x, I) {
        return k::SumFewRanks<float, 4>{x, {x + apart, x + 2 * apart, x + 3 * apart, x + 4 * apart}, apart - 3, add};
      });
  }
  compare("rope", 10 * 256 + 5 * 64, 10, rounding,
          [](F x, I) { return k::RopeBody<float>{x, x + 10 * 256, 64, 5, 3, 64, 64, 256, -1.0f}; });
  compare("rope at positions", 10 * 256 + 11 * 20, 10, rounding,  // halves of 10 numbers are not moved 16 bytes at a time
          [](F x, I t) { return k::RopeBody<float>{x, x + 10 * 256, 20, 5, 3, 20, 16, 256, 1.0f, t}; });
  // Positions are small, so caches are short. No two rows have the same place.
  compare("append to cache", 11 * 11 * 24 + 10 * 40, 10, 0,
          [](F x, I t) { return k::AppendToCache<float>{x, x + 11 * 11 * 24, 11, 10, 24, 40, t, t + 16}; });
  compare("join the cache", 17 * 24 + 9 * 24 + 10 * 40, 17, 0,
          [](F x, I) { return k::JoinCache<float>{x, x + 17 * 24, x + 26 * 24, 9, 5, 7, 24, 40}; });
  const k::AttentionShape shape = {.B = 10, .T = 1, .H = 6, .K = 2, .D = 20, .q_stride = 200, .kv_stride = 80};
  compare("cached attention", 10 * 120 + 10 * 200 + 11 * 11 * 80 + 60 * 11, 60, rounding, [=](F x, I t) {
    return k::CachedAttention<float>{x, x + 1200, x + 3200, 11, shape, t, t + 16, x + 3200 + 11 * 11 * 80};
  });
  const auto softmax = [](F x) { return reinterpret_cast<k::SoftmaxStats*>(x); };
  for (const std::size_t begin : {std::size_t{0}, std::size_t{5}})
    for (const bool last : {false, true})
      compare("cross entropy", 5 * R + n, R, rounding,
              [=](F x, I t) { return k::CrossEntropy<float>{x, softmax(x + R), x + 5 * R, t, begin, C, C, last}; });
  compare("logit gradient", 4 * R + n, R, rounding,
          [=](F x, I t) { return k::LogitGradient<float>{x + 4 * R, softmax(x), t, 0, C, C, 0.5f}; });
  compare("logit gradient, terms", 5 * R + n, R, rounding, [=](F x, I t) {
    return k::LossTermsGradient<float>{x + 4 * R, x + 5 * R, softmax(x), t, 0, C, C, 0.5f, 0.1f, 0.1f / C, 1e-2f, true};
  });
  compare("silu", 2 * n + C, R, rounding, [](F x, I) {
    return k::BiasActivation<k::SiluActivation, float>{x, x + n, x + 2 * n, C};
  });
  compare("silu backward", 3 * n, blocks, rounding, [](F x, I) {
    return k::ActivationBackward<k::SiluActivation, float>{x, x + n, x + 2 * n, n};
  });
  compare("tanh", 2 * n + C, R, rounding, [](F x, I) {
    return k::BiasActivation<k::TanhActivation, float>{x, x + n, x + 2 * n, C};
  });
  compare("tanh backward", 3 * n, blocks, rounding, [](F x, I) {
    return k::ActivationBackward<k::TanhActivation, float>{x, x + n, x + 2 * n, n};
  });
  for (const k::SoftmaxForm form : {k::SoftmaxForm::probabilities, k::SoftmaxForm::logarithms}) {
    const bool logarithms = form == k::SoftmaxForm::logarithms;
    compare(logarithms ? "log softmax" : "softmax", 2 * n, R, rounding, [=](F x, I) {
      return k::SoftmaxForward<float>{x, x + n, C, form};
    });
    compare(logarithms ? "log softmax backward" : "softmax backward", 3 * n, R, rounding, [=](F x, I) {
      return k::SoftmaxBackward<float>{x, x + n, x + 2 * n, C, form};
    });
  }
  compare("swiglu of columns", n + 2 * n, R, rounding, [](F x, I) {
    return k::SwigluRowsForward<float>{{x, C}, {x + n, 2 * C}, {x + n + C, 2 * C}, C};
  });
  compare("swiglu of columns backward", 5 * n, R, rounding, [](F x, I) {
    return k::SwigluRowsBackward<float>{{x, 2 * C},         {x + C, 2 * C},         {x + 4 * n, C},
                                        {x + 2 * n, 2 * C}, {x + 2 * n + C, 2 * C}, C};
  });
  compare("positions", 2 * n + 5 * C, R, 0, [](F x, I) { return k::AddPositions<float>{x, x + n, x + 2 * n, 5, C}; });
  compare("transpose", 2 * n, R, 0, [](F x, I) { return k::TransposeRows<float>{x, x + n, 17, 36}; });
  const auto loss_rows = [](F x) { return k::LossRows<float>{x, x + R, x + R + n, x + R + 2 * n, R, C, 0.5f}; };
  compare("squared error", R + 3 * n, R, rounding, [=](F x, I) {
    return k::ErrorLoss<k::SquaredError, float>{loss_rows(x), {}};
  });
  compare("absolute error", R + 3 * n, R, rounding, [=](F x, I) {
    return k::ErrorLoss<k::AbsoluteError, float>{loss_rows(x), {}};
  });
  compare("huber", R + 3 * n, R, rounding, [=](F x, I) {
    return k::ErrorLoss<k::HuberError, float>{loss_rows(x), {0.75f, 2}};
  });
  compare("binary cross entropy", R + 3 * n, R, rounding, [=](F x, I) {
    return k::BinaryCrossEntropy<float>{loss_rows(x), nullptr};
  });
  compare("binary cross entropy, weights", R + 3 * n + C, R, rounding, [=](F x, I) {
    return k::BinaryCrossEntropy<float>{loss_rows(x), x + R + 3 * n};
  });
  for (const bool backward : {false, true})
    compare("weights of classes", 5 * R + n + C, R, rounding, [=](F x, I t) {
      return k::WeighClasses<float>{x + 4 * R, x + 5 * R, softmax(x), t,     x + 5 * R + n, C,
                                    0.5f,      0.1f,      0.1f / C,   1e-2f, backward};
    });
  // Windows that overlap and reach into the padding, of rows with and without packs of 16 bytes.
  for (const bool masked : {false, true})
    compare(
        masked ? "softmax of scores, mask" : "softmax of scores", 2 * n + 2 * C, R, rounding,
        [=](F x, I) {
          return k::ScoreSoftmax<float>{x, x + n, {R, C, C - 20, masked ? x + 2 * n : nullptr, 2}, 1.3f};
        },
        [=](F x) {
          for (std::size_t i = 0; i < 2 * C; i += 6) x[2 * n + i] = 0;
        });
  compare("softmax of scores backward", 3 * n, R, rounding, [=](F x, I) {
    return k::ScoreSoftmaxBackward<float>{x, x + n, x + 2 * n, C, 1.3f};
  });
  k::RotaryFrequencies frequencies = {.value = {}, .pairs = 20};
  for (std::size_t i = 0; i < 20; ++i) frequencies.value[i] = 1 / static_cast<float>(i + 1);
  compare("rotary table", 30 * 40, 30, rounding, [=](F x, I) { return k::RotaryTable<float>{x, frequencies}; });
  const k::EmbeddingNoise of_embedding = {{3, 4}, 5, 0.5f, 3};
  compare("noise of the embedding", n, R, 0, [=](F x, I) { return k::AddNoise<float>{x, C, of_embedding}; });
  // 16-bit numbers: half as many floats hold them.
  const auto bf = [](F x) { return reinterpret_cast<fsdp::bf16*>(x); };
  const auto half = [](F x) { return reinterpret_cast<fsdp::f16*>(x); };
  compare("to bf16", 2 * n, blocks, 0, [=](F x, I) { return k::Convert<fsdp::bf16, float>{bf(x), x + n, n}; });
  compare("from bf16", 2 * n, blocks, 0, [=](F x, I) { return k::Convert<float, fsdp::bf16>{x, bf(x + n), n}; });
  compare("to fp16", 2 * n, blocks, 0, [=](F x, I) { return k::Convert<fsdp::f16, float>{half(x), x + n, n}; });
  const auto on_16_bytes = [](std::size_t floats) { return (floats + 3) / 4 * 4; };  // where 16-byte packs begin
  const std::size_t size = on_16_bytes(n);
  // Arrays at a distance of `apart` numbers: they are moved 16 bytes or one number at a time.
  const auto optimizer = [&](const char* name, auto rule, std::size_t apart) {
    using Update = k::ElementUpdate<decltype(rule), float>;
    compare(name, 5 * apart, blocks, rounding, [=](F x, I) {
      Update body{rule,
                  {.parameter = x,
                   .state = {},
                   .gradient = x + apart,
                   .n = n,
                   .norm = nullptr,
                   .scales = true,
                   .noise = {},
                   .copy = {}}};
      for (int s = 0; s < rule.states; ++s) body.memory.state[s] = x + (2 + s) * apart;
      return body;
    });
  };
  static_assert(n % 4 != 0);
  // beta2 = 0: v becomes the gradient's square and does not depend on its old value.
  for (const std::size_t apart : {size, n})
    optimizer("adamw", k::AdamRule<false>{0.99f, 0, 0.9f, 0.1f, 0.0f, 1.0f, 0.01f, 1.1f, 1e-8f}, apart);
  optimizer("adam, amsgrad", k::AdamRule<true>{1, 0.1f, 0.9f, 0.1f, 0.0f, 1.0f, 0.01f, 1.1f, 1e-8f}, size);
  optimizer("sgd", k::SgdRule{0.99f, 0.1f, 0.1f}, size);
  optimizer("momentum", k::MomentumRule{0.1f, 0.1f, 0.9f, 1, 0.9f}, size);
  optimizer("average", k::AverageRule{0.1f}, size);
  optimizer("lion", k::LionRule{0.99f, 0.01f, 0.9f, 0.1f, 0.99f, 0.01f}, size);

  // States in bf16 and the following numbers: lanes read values that other lanes have written. The part begins inside a block.
  const k::RoundingNoise noise = k::rounding_noise(fsdp::RandomSite::optimizer_state, 1, 2, 3, 1000);
  const std::size_t parts = (1000 + n + k::flat_block - 1) / k::flat_block, words = sizeof(k::ExactSum) / sizeof(float);
  const auto states = [=]<int count>(std::integral_constant<int, count>, F at, F parameter, F gradient, F copy) {
    k::ElementMemory<std::uint16_t, count> memory{.parameter = parameter,
                                                  .state = {},
                                                  .gradient = gradient,
                                                  .n = n,
                                                  .norm = nullptr,
                                                  .scales = true,
                                                  .noise = noise,
                                                  .copy = {reinterpret_cast<std::uint16_t*>(copy), DType::bf16}};
    for (int s = 0; s < count; ++s) memory.state[s] = reinterpret_cast<std::uint16_t*>(at + static_cast<std::size_t>(s) * n);
    return memory;
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  const auto make_positive = [=](F x) {  // the second state: squares
    auto* const v = reinterpret_cast<std::uint16_t*>(x + n);
    for (std::size_t i = 0; i < n; ++i) v[i] &= 0x3fffu;
  };
  const auto finite = [=](F x, std::size_t count) {  // numbers that are exact in bf16
    auto* const s = reinterpret_cast<std::uint16_t*>(x);
    for (std::size_t i = 0; i < count; ++i) s[i] = fsdp::bf16(static_cast<float>(i % 97) * 0.01f - 0.5f).bits;
  };
  // If a lane reads a second moment before it is written, it reads zero, and the direction becomes far too long.
  const auto sums_are_zero = [=](F x) {
    finite(x, n), std::fill_n(x + n, n, 0.0f);
    std::fill_n(x + 4 * n, 2 * words, 0.0f);
  };
  const auto sum = [=](F x, std::size_t i) { return reinterpret_cast<k::ExactSum*>(x + 4 * n) + i; };
  static_assert(4 * n % 2 == 0);
  compare(
      "adamw in bf16", 5 * n, parts, rounding,
      [=](F x, I) {
        return k::ElementUpdate<k::AdamRule<false>, std::uint16_t>{{0.99f, 0, 0.9f, 0.1f, 0.99f, 0.01f, 0.01f, 1.1f, 1e-8f},
                                                                   states(two, x, x + 2 * n, x + 3 * n, x + 4 * n)};
      },
      [=](F x) { finite(x, n), finite(x + n, n), make_positive(x), finite(x + 4 * n, 2 * n); });
  // Everything in bf16, in packs of 16 bytes, one number at a time, and both.
  const auto one_pass = [&](const char* name, auto rule, std::size_t first, std::size_t apart, std::size_t count) {
    const std::size_t blocks_of_part = (first % k::flat_block + count + k::flat_block - 1) / k::flat_block;
    compare(
        name, 3 * apart, blocks_of_part, 0,
        [=](F x, I) {
          auto* const at = reinterpret_cast<std::uint16_t*>(x);
          k::NarrowUpdate<decltype(rule)> body{rule, {}, at, at + apart, {5, 6}};
          body.memory.n = count, body.memory.noise = k::rounding_noise(fsdp::RandomSite::optimizer_state, 1, 2, 3, first);
          for (int s = 0; s < rule.states; ++s) body.memory.state[s] = at + static_cast<std::size_t>(2 + s) * apart;
          return body;
        },
        [=](F x) {
          finite(x, 6 * apart);
          auto* const v = reinterpret_cast<std::uint16_t*>(x) + 2 * apart;
          for (std::size_t i = 0; i < 3 * apart; ++i) v[i] &= 0x7fffu;
        });
  };
  const k::AdamRule<false> adamw{0.99f, 0, 0.9f, 0.1f, 0.99f, 0.01f, 0.01f, 1.1f, 1e-8f};
  for (const std::size_t first : {0, 1, 8, 1000, 4095})
    for (const std::size_t apart : {2 * k::flat_block + 16, 2 * k::flat_block + 17})
      one_pass("adamw in one pass", adamw, first, apart, 2 * k::flat_block + 9);
  one_pass("adamw, short part", adamw, 4090, 16, 7);
  constexpr std::size_t two_blocks = 2 * k::flat_block + 16;
  one_pass("amsgrad in one pass", k::AdamRule<true>{1, 0.1f, 0.9f, 0.1f, 0.99f, 0.01f, 0.01f, 1.1f, 1e-8f}, 8, two_blocks,
           two_blocks);
  one_pass("momentum in one pass", k::MomentumRule{0.1f, 0.1f, 0.9f, 1, 0.9f}, 8, two_blocks, two_blocks);
  one_pass("adagrad in one pass", k::AdagradRule{0.1f, 0.1f, 1e-8f}, 8, two_blocks, two_blocks);
  one_pass("lion in one pass", k::LionRule{0.99f, 0.01f, 0.9f, 0.1f, 0.99f, 0.01f}, 8, two_blocks, two_blocks);
  compare(
      "round at random", 2 * n, parts, 0,
      [=](F x, I) {
        return k::ElementUpdate<k::KeepRule, std::uint16_t>{{true}, states(one, x, x + n, x + n, nullptr)};
      },
      [=](F x) { finite(x, 2 * n); });
  compare(
      "lamb's sums", 4 * n + 2 * words, parts, 0,
      [=](F x, I) {
        return k::LambStatistics<std::uint16_t>{{0.9f, 0.1f, 0.99f, 0.01f, 1.1f, 1.2f, 1e-12f, 0.01f},
                                                states(two, x, x + 2 * n, x + 3 * n, nullptr),
                                                sum(x, 0),
                                                sum(x, 1)};
      },
      sums_are_zero);
  compare(
      "adafactor's sums", 4 * n + 2 * words, parts, 0,
      [=](F x, I) {
        return k::VarianceStatistics<std::uint16_t>{
            {1e-20f}, states(one, x + n, x + 2 * n, x + 3 * n, nullptr), 0.3f, sum(x, 0)};
      },
      sums_are_zero);
  // From the middle of one row to the middle of another.
  const k::MatrixPart part{100, n - 300, C};
  const auto norm_of = [](F x) { return reinterpret_cast<k::GradientNorm*>(x); };
  const auto set_norm = [=](F x) { *norm_of(x) = {.norm = 1000, .scale = 0.5, .finite = true}; };
  const auto set_words = [=](F x) { set_norm(x), std::fill_n(x + 16, 4 * C, 0.0f); };
  const auto words_at = [](F x) { return reinterpret_cast<std::int64_t*>(x + 16); };
  const std::size_t strips = (C + k::ColumnSquaresOfRows::strip - 1) / k::ColumnSquaresOfRows::strip;
  const auto by_rows = [=](F x, I) {
    return k::ColumnSquaresOfRows{norm_of(x), part, part.first_row(), part.row_count(), 5, x + 16 + 4 * C, words_at(x)};
  };
  compare("column squares", 16 + 4 * C + n, 5 * strips, 0, by_rows, set_words);
  // Also by strips, in the order of CPUs.
  std::vector<float> rows_first = numbers(16 + 4 * C + n), strips_first = rows_first;
  set_words(rows_first.data()), set_words(strips_first.data());
  run_on_cpu(by_rows(rows_first.data(), nullptr), 5 * strips);
  run_on_cpu(k::ColumnSquares{norm_of(strips_first.data()), part, part.first_row(), part.row_count(),
                              strips_first.data() + 16 + 4 * C, words_at(strips_first.data())},
             (C + k::ColumnSquares::strip - 1) / k::ColumnSquares::strip);
  if (std::memcmp(rows_first.data(), strips_first.data(), rows_first.size() * sizeof(float)) != 0) {
    std::printf("column squares by rows and by strips FAILED\n");
    ++failures;
  }
  // Directions of 1, and steps of 0.1: row_var in x + 16, followed by column_var.
  const std::size_t factors = 16 + 2 * words;
  const std::size_t matrix = on_16_bytes(factors + R + C);
  const auto set_factors = [=](F x) {
    set_norm(x);
    std::fill_n(x + 16, 2 * words, 0.0f);
    std::fill_n(x + factors, R + C, 1.0f);
    auto* const mean = reinterpret_cast<std::int64_t*>(x + 8);
    mean[0] = 0x3f800000, mean[1] = 1;  // 1, of one rank
  };
  compare(
      "adafactor", matrix + 3 * size, part.row_count(), rounding,
      [=](F x, I) {
        const auto sum_at = [=](std::size_t i) { return reinterpret_cast<const k::ExactSum*>(x + 16) + i; };
        return k::FactoredUpdate{
            {x + factors, x + factors + R, reinterpret_cast<const std::int64_t*>(x + 8), 1e-20f, norm_of(x)},
            part,
            part.first_row(),
            x + matrix,
            x + matrix + size,
            {reinterpret_cast<std::uint16_t*>(x + matrix + 2 * size), DType::bf16},
            0.99f,
            {sum_at(0), sum_at(1), double(n), 1, 0.1, 1e-3}};
      },
      set_factors);
  compare(
      "row squares", 16 + 4 * R + n, part.row_count(), 0,
      [=](F x, I) {
        return k::RowSquares{norm_of(x), part, part.first_row(), x + 16 + 4 * R, reinterpret_cast<std::int64_t*>(x + 16)};
      },
      set_norm);

  const std::size_t counters = (6 + n + 3) / 4 - 6 / 4;
  compare("normal numbers", n, (counters + 255) / 256, 0, [](F x, I) { return k::NormalFill{x, n, 6, 3, 4, 0.5f, 0.02f}; });
  compare("uniform numbers", n, (counters + 255) / 256, 0, [](F x, I) { return k::UniformFill{x, n, 6, 3, 4, 0, 0.02f}; });

  compare_squares();
  count_non_finite();
  compare_rounding_and_squares();
  return failures > 0;
}
