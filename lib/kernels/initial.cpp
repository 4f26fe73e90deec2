#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

void fill_normal(Stream& stream, float* x, std::size_t n, std::size_t global_begin, std::uint32_t seed, std::uint32_t tensor,
                 float mean, float stddev) {
  if (n == 0) return;
  const std::size_t counters = (global_begin + n + 3) / 4 - global_begin / 4;
  launch(stream, NormalFill{x, n, global_begin, seed, tensor, mean, stddev},
         (counters + NormalFill::block - 1) / NormalFill::block);
}

}  // namespace fsdp::kernels
