// The row kernels of recorded layers and losses of one instruction set, apart from those of rows/cpu.cpp, whose rules are here
// the same.
#include <omp.h>

#include "kernels/rows/tape.hpp"
#include "kernels/tape_launch.hpp"

namespace fsdp::kernels {

template <int level, class Body>
void run_tape_rows(const Body& body, std::size_t rows) {
#pragma omp parallel for schedule(static) if (rows > 1)
  for (std::size_t r = 0; r < rows; ++r) body(CpuLanes<level>{}, r);
}

template <>
void run_tape_tiles<FSDP_CPU_LEVEL>(const TapeRun& run) {
  const TapeTiles body{run};
#pragma omp parallel for schedule(static) if (run.parts > 1)
  for (std::size_t part = 0; part < run.parts; ++part)
    body(CpuLanes<FSDP_CPU_LEVEL>{}, part, run.tiles + static_cast<std::size_t>(omp_get_thread_num()) * run.tile_floats);
}

#define FSDP_INSTANTIATE(...) template void run_tape_rows<FSDP_CPU_LEVEL, __VA_ARGS__>(const __VA_ARGS__&, std::size_t);
FSDP_TAPE_BODIES(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
