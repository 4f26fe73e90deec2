// Launches stochastic rounding and, on any device, the row functions of element_update.hpp.
#include "device/traits.hpp"
#include "kernels/element_update.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/statistics.hpp"

namespace fsdp::kernels {

RoundingNoise rounding_noise(RandomSite site, std::uint32_t seed, std::uint64_t update, std::size_t parameter,
                             std::size_t first_element, std::uint32_t time) {
  const auto words = philox({static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(update),
                             static_cast<std::uint32_t>(update >> 32), static_cast<std::uint32_t>(site)},
                            {seed, time});
  return {{words[0], words[1]}, first_element};
}

void round_at_random(Stream& stream, bf16* kept, float* wide, std::size_t n, const RoundingNoise& noise, Write write,
                     ExactSum* squares) {
  const KeepRule rule{write == Write::add};
  const auto memory = memory_of<std::uint16_t, 1>(
      {.parameter = wide, .state = {reinterpret_cast<std::byte*>(kept)}, .gradient = wide, .n = n, .noise = noise});
  const DeviceKernels* const device = stream.kernels();
  if (!squares || !device || n > Squares::most_before_normalizing) {
    launch(stream, ElementUpdate<KeepRule, std::uint16_t>{rule, memory}, rows_of(memory));
    if (squares) add_squares(stream, *squares, wide, n);
    return;
  }
  const std::size_t row = grain_of(stream.kind()).square_blocks, blocks = rows_of(memory);
  const KeepAndSquare body{rule, memory, squares, blocks, row};
  device->rows(stream, typeid(KeepAndSquare), &body, (blocks + row - 1) / row);
  launch(stream, NormalizeSums{squares}, 1);
}

void move_average(Stream& stream, float* average, const float* values, std::size_t n, double decay, const GradientNorm& norm) {
  const auto memory = memory_of<float, 0>({.parameter = average, .gradient = values, .n = n, .norm = &norm, .scales = false});
  launch(stream, ElementUpdate<AverageRule, float>{{single(1 - decay)}, memory}, rows_of(memory));
}

void launch_rows(Stream& stream, const RowFunctions& functions, const void* body, std::size_t rows) {
  if (rows == 0) return;
  if (const DeviceKernels* device = stream.kernels()) return device->rows(stream, functions.type, body, rows);
  const RowFunction row = functions.of_level(cpu_level());
#pragma omp parallel if (rows > 1)
  {
    const FlushDenormals flush;
#pragma omp for schedule(static)
    for (std::size_t r = 0; r < rows; ++r) row(body, r);
  }
}

}  // namespace fsdp::kernels
