// bf16 products and attention on AMX, compiled for x86-64-v4 and AMX's instructions as level 5. The rules of rows/cpu.cpp about
// names and inlining hold here, too.
#include <omp.h>

#include "kernels/launch.hpp"
#include "kernels/rows/attention_tiles.hpp"
#include "kernels/rows/tile_gemm.hpp"

namespace fsdp::kernels {

namespace {

template <class Body>
void run(const Body& body, std::size_t rows, float* scratch, std::size_t scratch_per_thread) {
#pragma omp parallel for schedule(static)
  for (std::size_t r = 0; r < rows; ++r)
    body(CpuLanes<5>{}, r, scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_per_thread);
}

}  // namespace

template <>
void run_attention<5>(const AttentionForward<bf16>& call, std::size_t rows, float* scratch, std::size_t scratch_per_thread) {
  run(TileAttentionForward{call}, rows, scratch, scratch_per_thread);
}
template <>
void run_attention<5>(const AttentionBackward<bf16>& call, std::size_t rows, float* scratch, std::size_t scratch_per_thread) {
  run(TileAttentionBackward{call}, rows, scratch, scratch_per_thread);
}

FSDP_INSTANTIATE_TILE_PRODUCTS(5)

}  // namespace fsdp::kernels
