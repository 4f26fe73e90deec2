#include "kernels/exact_sum.hpp"

#include <algorithm>

#include "device/traits.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void add_squares(Stream& stream, ExactSum& sum, const float* x, std::size_t n) {
  const std::size_t row = grain_of(stream.kind()).square_blocks * Squares::block;
  for (std::size_t begin = 0; begin < n; begin += Squares::most_before_normalizing) {
    const std::size_t count = std::min(Squares::most_before_normalizing, n - begin);
    launch(stream, Squares{&sum, x + begin, count, row}, (count + row - 1) / row);
    launch(stream, NormalizeSums{&sum}, 1);
  }
}

void add_non_finite(Stream& stream, ExactSum& sum, const float* x, std::size_t n) {
  launch(stream, CountNonFinite{&sum, x, n}, (n + CountNonFinite::block - 1) / CountNonFinite::block);
}

}  // namespace fsdp::kernels
