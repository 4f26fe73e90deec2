#include "kernels/exact_sum.hpp"

#include <algorithm>

#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void add_squares(Stream& stream, ExactSum& sum, const float* x, std::size_t n) {
  for (std::size_t begin = 0; begin < n; begin += Squares::most_before_normalizing) {
    const std::size_t count = std::min(Squares::most_before_normalizing, n - begin);
    launch(stream, Squares{&sum, x + begin, count}, (count + Squares::row - 1) / Squares::row);
    launch(stream, NormalizeSums{&sum}, 1);
  }
}

}  // namespace fsdp::kernels
