// The row kernels of one instruction set. This file is compiled once for each CpuLevel, with FSDP_CPU_LEVEL the level's number.
// The level is part of every name that is instantiated here, and all other functions are forced inline. If a function of
// another header were compiled out of line here, the linker could use the copy of this file for the whole program, and a
// machine without AVX-512 would stop with an illegal instruction. The tests kernels.symbols look for such functions.
#include <omp.h>

#include "kernels/launch.hpp"
#include "kernels/rows/attention.hpp"
#include "kernels/rows/bodies.hpp"
#include "kernels/rows/skinny.hpp"

namespace fsdp::kernels {

namespace {

template <class Body>
concept FlushesDenormals = Body::flush_denormals;

}  // namespace

template <int level, class Body>
void run_rows(const Body& body, std::size_t rows) {
  if constexpr (FlushesDenormals<Body>) {
#pragma omp parallel if (rows > 1)
    {
      const FlushDenormals flush;
#pragma omp for schedule(static)
      for (std::size_t r = 0; r < rows; ++r) body(CpuLanes<level>{}, r);
    }
  } else {
#pragma omp parallel for schedule(static) if (rows > 1)
    for (std::size_t r = 0; r < rows; ++r) body(CpuLanes<level>{}, r);
  }
}

template <int level, class Body>
void run_attention(const Body& body, std::size_t rows, float* scratch, std::size_t scratch_per_thread) {
#pragma omp parallel for schedule(static)
  for (std::size_t r = 0; r < rows; ++r)
    body(CpuLanes<level>{}, r, scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_per_thread);
}
#define FSDP_INSTANTIATE_ATTENTION(E)                                                                        \
  template void run_attention<FSDP_CPU_LEVEL>(const AttentionForward<E>&, std::size_t, float*, std::size_t); \
  template void run_attention<FSDP_CPU_LEVEL>(const AttentionBackward<E>&, std::size_t, float*, std::size_t);
FSDP_INSTANTIATE_ATTENTION(float)
FSDP_INSTANTIATE_ATTENTION(bf16)
FSDP_INSTANTIATE_ATTENTION(f16)

#define FSDP_INSTANTIATE(...) template void run_rows<FSDP_CPU_LEVEL, __VA_ARGS__>(const __VA_ARGS__&, std::size_t);
FSDP_ROW_BODIES(FSDP_INSTANTIATE)
FSDP_CPU_BODIES(FSDP_INSTANTIATE)
FSDP_FEW_ROWS_BODIES(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
