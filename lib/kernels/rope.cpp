#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void rope(Stream& stream, float* x, std::size_t B, std::size_t T, std::size_t heads, std::size_t D, std::size_t stride,
          const float* cos_sin, bool inverse) {
  expect(D % 2 == 0 && heads * D <= stride, "rope: the heads do not fit their rows");
  launch(stream, RopeBody{x, cos_sin, T, heads, D, stride, inverse ? -1.0f : 1.0f}, B * T);
}

}  // namespace fsdp::kernels
