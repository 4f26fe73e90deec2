// Muon: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon), with
// the coefficients and steps of torch.optim.Muon; in fp32, where that works in bf16.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/element_update.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/newton_schulz.hpp"

namespace fsdp::kernels {

namespace {

constexpr int steps = 5;
constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
constexpr double least_norm = 1e-7;

std::size_t squared(std::size_t x) { return x * x; }

}  // namespace

std::size_t newton_schulz_scratch(std::size_t rows, std::size_t columns) {
  return rows * columns + 2 * squared(std::min(rows, columns));
}

double newton_schulz_flops(std::size_t rows, std::size_t columns) {
  const auto n = static_cast<double>(std::min(rows, columns)), m = static_cast<double>(std::max(rows, columns));
  return steps * 2 * (n * n * m + n * n * n + n * n * m);
}

void newton_schulz(Stream& stream, float* x, std::size_t rows, std::size_t columns, float* scratch) {
  const bool wide = rows <= columns;  // the smaller of x x^T and x^T x
  const std::size_t n = std::min(rows, columns), numel = rows * columns;
  float *other = scratch, *gram = other + numel, *square = gram + n * n;
  ExactSum sum;
  add_squares(stream, sum, x, numel);
  launch(stream, Scale{x, numel, single(1 / std::max(std::sqrt(sum.value()), least_norm))},
         (numel + flat_block - 1) / flat_block);
  float *from = x, *to = other;
  for (int step = 0; step < steps; ++step) {
    if (wide)
      gemm(stream, Trans::no, Trans::yes, n, n, columns, from, columns, from, columns, gram, n, Write::overwrite);
    else
      gemm(stream, Trans::yes, Trans::no, n, n, rows, from, columns, from, columns, gram, n, Write::overwrite);
    gemm(stream, Trans::no, Trans::no, n, n, n, gram, n, gram, n, square, n, Write::overwrite);
    launch(stream, SquarePolynomial{square, gram, n, a, b, c}, n);
    if (wide)
      gemm(stream, Trans::no, Trans::no, rows, columns, n, square, n, from, columns, to, columns, Write::overwrite);
    else
      gemm(stream, Trans::no, Trans::no, rows, columns, n, from, columns, square, n, to, columns, Write::overwrite);
    std::swap(from, to);
  }
  if (from != x) std::memcpy(x, from, numel * sizeof(float));
}

}  // namespace fsdp::kernels
