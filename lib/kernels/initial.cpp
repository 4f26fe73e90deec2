// Launches the kernels that fill initial weights with random numbers.
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

template <class Fill>
void fill(Stream& stream, const Fill& body) {
  if (body.n == 0) return;
  const std::size_t counters = (body.global_begin + body.n + 3) / 4 - body.global_begin / 4;
  launch(stream, body, (counters + Fill::block - 1) / Fill::block);
}

}  // namespace

void fill_normal(Stream& stream, float* x, std::size_t n, std::size_t global_begin, std::uint32_t seed, std::uint32_t tensor,
                 float mean, float stddev) {
  fill(stream, NormalFill{x, n, global_begin, seed, tensor, mean, stddev});
}

void fill_uniform(Stream& stream, float* x, std::size_t n, std::size_t global_begin, std::uint32_t seed, std::uint32_t tensor,
                  float bound) {
  fill(stream, UniformFill{x, n, global_begin, seed, tensor, 0, bound});
}

}  // namespace fsdp::kernels
