// The Newton-Schulz iteration of Muon: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"
// (kellerjordan.github.io/posts/muon), with the coefficients and the number of steps of torch.optim.Muon, but in fp32 instead
// of bf16.
#include <algorithm>

#include "kernels/element_update.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/newton_schulz.hpp"

namespace fsdp::kernels {

namespace {

constexpr int steps = 5;
constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
constexpr double least_norm = 1e-7;

/// The size of the ExactSum at the start of the scratch, rounded up to whole cache lines.
constexpr std::size_t sum_floats = (sizeof(ExactSum) / sizeof(float) + 15) / 16 * 16;

std::size_t squared(std::size_t x) { return x * x; }

}  // namespace

std::size_t newton_schulz_scratch(std::size_t rows, std::size_t columns) {
  return sum_floats + rows * columns + 2 * squared(std::min(rows, columns));
}

double newton_schulz_flops(std::size_t rows, std::size_t columns) {
  const auto n = static_cast<double>(std::min(rows, columns)), m = static_cast<double>(std::max(rows, columns));
  return steps * 2 * (n * n * m + n * n * n + n * n * m);
}

void newton_schulz(Stream& stream, float* x, std::size_t rows, std::size_t columns, float* scratch) {
  const bool wide = rows <= columns;  // if true, x x^T is the smaller Gram matrix; if false, x^T x
  const std::size_t n = std::min(rows, columns), numel = rows * columns;
  ExactSum& sum = *reinterpret_cast<ExactSum*>(scratch);
  float *other = scratch + sum_floats, *gram = other + numel, *square = gram + n * n;
  fill_zero(stream, scratch, sum_floats);
  add_squares(stream, sum, x, numel);
  launch(stream, DivideByNorm{x, numel, &sum, least_norm}, flat_blocks(numel));
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
  convert(stream, x, from, numel);
}

}  // namespace fsdp::kernels
