// Every row body on the GPU beside the same body on the CPU. A case is one array of floats that holds inputs and outputs: both
// devices get a copy, run the body on it, and the whole arrays are compared. Exits 77 where there is no device.
#include "kernels/cuda_twin.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda_twin_cpu.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"
#include "kernels/rows/cuda.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace k = fsdp::kernels;

namespace {

int failures = 0;

template <class Body>
void run_on_cpu(const Body& body, std::size_t rows) {
  k::launch(cpu(), body, rows);
}
template <class Rule>
void run_on_cpu(const k::ElementUpdate<Rule, float>& body, std::size_t rows) {
  k::update_on_cpu(cpu(), body, rows);
}

/// make(floats, tokens) gives the body with its pointers; `n` floats. `tolerance` is relative to the largest value.
template <class Make>
void compare(const char* name, std::size_t n, std::size_t rows, float tolerance, Make make) {
  const std::vector<float> start = numbers(n);
  std::vector<std::int32_t> tokens(64);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % 7 == 3 ? 2 : static_cast<std::int32_t>(i * 5 % 11);

  std::vector<float> host = start;
  run_on_cpu(make(host.data(), tokens.data()), rows);
  const DeviceCopy<float> device(start);
  const DeviceCopy<std::int32_t> device_tokens(tokens);
  check(k::run_rows_cuda(nullptr, make(device.data(), device_tokens.data()), rows), name);
  check(cudaDeviceSynchronize(), name);
  const std::vector<float> got = device.fetch();

  double error = 0, size = 0;
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(host[i])) {  // some 16-bit numbers of the input are not
      finite = finite && std::memcmp(&got[i], &host[i], sizeof(float)) == 0;
      continue;
    }
    finite = finite && std::isfinite(got[i]);
    error = std::max(error, std::abs(static_cast<double>(got[i]) - host[i]));
    size = std::max(size, std::abs(static_cast<double>(host[i])));
  }
  const bool ran = host != start;
  const bool ok = finite && ran && error <= tolerance * size;
  std::printf("%-24s relative difference %.1e, allowed %.1e%s\n", name, error / size, static_cast<double>(tolerance),
              ok ? "" : "  FAILED");
  failures += !ok;
}

}  // namespace

int main() {
  skip_without_device();
  // More columns than threads of a block and no multiple of a warp; sums in another order, so a few roundings apart.
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
    compare("column finish", C + 3 * C, 2, rounding, [=](F x, I) { return k::ColumnFinish{x, x + C, C, C, 3, add}; });
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
  compare("column sum", 3 * C + n, 3, rounding, [](F x, I) { return k::ColumnSum<float>{x, x + 3 * C, R, C, C, 3}; });
  compare("embedding", n + 16 * C, 30, 0,
          [](F x, I t) { return k::EmbeddingForward<float>{x, t, x + n, x + n + 11 * C, 5, C}; });
  compare("embedding backward", 11 * C + n, 3, 0, [](F x, I t) { return k::EmbeddingBackward<float>{x, x + 11 * C, t, R, C}; });
  compare("add bias", n + C, R, 0, [](F x, I) { return k::AddBias<float>{x, x + n, C}; });
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
  compare("swiglu", 3 * n, blocks, rounding, [](F x, I) { return k::SwigluForward<float>{x, x + n, x + 2 * n, n}; });
  compare("swiglu backward", 5 * n, blocks, rounding,
          [](F x, I) { return k::SwigluBackward<float>{x, x + n, x + 2 * n, x + 3 * n, x + 4 * n, n}; });
  compare("clip values", n, blocks, 0, [](F x, I) { return k::ClipValues{x, n - 3, 0.25f}; });
  compare("fill", n, blocks, 0, [](F x, I) { return k::Fill<float>{x, n - 3, 1.5f}; });
  compare("rope", 10 * 256 + 5 * 64, 10, rounding,
          [](F x, I) { return k::RopeBody<float>{x, x + 10 * 256, 5, 3, 64, 256, -1.0f}; });
  const auto softmax = [](F x) { return reinterpret_cast<k::SoftmaxStats*>(x); };
  for (const std::size_t begin : {std::size_t{0}, std::size_t{5}})
    for (const bool last : {false, true})
      compare("cross entropy", 4 * R + n, R, rounding,
              [=](F x, I t) { return k::CrossEntropy<float>{x, softmax(x + R), x + 4 * R, t, begin, C, last}; });
  compare("logit gradient", 3 * R + n, R, rounding,
          [=](F x, I t) { return k::LogitGradient<float>{x + 3 * R, softmax(x), t, 0, C, 0.5f}; });
  // 16-bit numbers: half as many floats hold them.
  const auto bf = [](F x) { return reinterpret_cast<fsdp::bf16*>(x); };
  const auto half = [](F x) { return reinterpret_cast<fsdp::f16*>(x); };
  compare("to bf16", 2 * n, blocks, 0, [=](F x, I) { return k::Convert<fsdp::bf16, float>{bf(x), x + n, n}; });
  compare("from bf16", 2 * n, blocks, 0, [=](F x, I) { return k::Convert<float, fsdp::bf16>{x, bf(x + n), n}; });
  compare("to fp16", 2 * n, blocks, 0, [=](F x, I) { return k::Convert<fsdp::f16, float>{half(x), x + n, n}; });
  const auto optimizer = [&](const char* name, auto rule) {
    using Update = k::ElementUpdate<decltype(rule), float>;
    compare(name, 5 * n, blocks, rounding, [=](F x, I) {
      Update body{
          rule,
          {.parameter = x, .state = {}, .gradient = x + n, .n = n, .norm = nullptr, .scales = true, .noise = {}, .copy = {}}};
      for (int s = 0; s < rule.states; ++s) body.memory.state[s] = x + (2 + s) * n;
      return body;
    });
  };
  // beta2 = 0: v becomes the gradient's square, whatever its sign was.
  optimizer("adamw", k::AdamRule<false>{0.99f, 0, 0.9f, 0.1f, 0.0f, 1.0f, 0.01f, 1.1f, 1e-8f});
  optimizer("adam, amsgrad", k::AdamRule<true>{1, 0.1f, 0.9f, 0.1f, 0.0f, 1.0f, 0.01f, 1.1f, 1e-8f});
  optimizer("sgd", k::SgdRule{0.99f, 0.1f, 0.1f});
  optimizer("momentum", k::MomentumRule{0.1f, 0.1f, 0.9f, 1, 0.9f});
  optimizer("lion", k::LionRule{0.99f, 0.01f, 0.9f, 0.1f, 0.99f, 0.01f});
  const std::size_t counters = (6 + n + 3) / 4 - 6 / 4;
  compare("normal numbers", n, (counters + 255) / 256, 0, [](F x, I) { return k::NormalFill{x, n, 6, 3, 4, 0.5f, 0.02f}; });

  // Exact sums: all integers must agree.
  std::vector<float> x = numbers(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = std::ldexp(x[i], static_cast<int>(i % 200) - 100);
  x[5] = INFINITY;
  std::vector<k::ExactSum> host(1);
  const std::size_t rows = (n + k::Squares::row - 1) / k::Squares::row;
  k::launch(cpu(), k::Squares{host.data(), x.data(), n}, rows);
  const DeviceCopy<float> device_x(x);
  const DeviceCopy<k::ExactSum> device(std::vector<k::ExactSum>(1));
  check(k::run_rows_cuda(nullptr, k::Squares{device.data(), device_x.data(), n}, rows), "squares");
  const std::vector<k::ExactSum> got = device.fetch();
  const bool same = std::memcmp(got.data(), host.data(), sizeof(k::ExactSum)) == 0;
  std::printf("%-24s %s\n", "squares", same ? "same integers" : "FAILED");
  failures += !same;
  return failures > 0;
}
