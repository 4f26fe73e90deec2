#include "kernels/threads.hpp"

#include <omp.h>

#include <algorithm>

namespace fsdp::kernels {

void set_threads(int count) { omp_set_num_threads(count); }
int threads() { return omp_get_max_threads(); }

std::size_t gemm_workspace_bytes(std::size_t rows, std::size_t columns) {
  constexpr std::size_t panel = 384, most = 8192;
  return sizeof(float) * panel * (std::min(rows, most) + std::min(columns, most));
}

}  // namespace fsdp::kernels
