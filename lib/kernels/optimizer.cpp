#include <xmmintrin.h>

#include "base/philox.hpp"
#include "kernels/element_update.hpp"
#include "kernels/launch.hpp"

namespace fsdp::kernels {

StateNoise state_noise(std::uint32_t seed, std::uint64_t update, std::size_t parameter, std::size_t first_element) {
  const auto words = philox({static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(update),
                             static_cast<std::uint32_t>(update >> 32), static_cast<std::uint32_t>(RandomSite::optimizer_state)},
                            {seed, 0});
  return {{words[0], words[1]}, first_element};
}

void launch_rows(Stream& stream, const RowFunctions& functions, const void* body, std::size_t rows) {
  if (rows == 0) return;
  if (const DeviceKernels* device = stream.kernels()) return device->rows(stream, functions.type, body, rows);
  const CpuLevel level = cpu_level();
  const RowFunction row = level == CpuLevel::v4 ? functions.v4 : level == CpuLevel::v3 ? functions.v3 : functions.v2;
#pragma omp parallel if (rows > 1)
  {
    constexpr unsigned flush_denormals = 0x8040;  // results (FTZ) and operands (DAZ)
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | flush_denormals);
#pragma omp for schedule(static)
    for (std::size_t r = 0; r < rows; ++r) row(body, r);
    _mm_setcsr(saved);
  }
}

}  // namespace fsdp::kernels
