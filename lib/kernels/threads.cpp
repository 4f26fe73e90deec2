#include "kernels/threads.hpp"

#include <omp.h>

namespace fsdp::kernels {

void set_threads(int count) { omp_set_num_threads(count); }
int threads() { return omp_get_max_threads(); }

std::size_t gemm_workspace_bytes(int threads) { return static_cast<std::size_t>(threads) * (std::size_t{8} << 20); }

}  // namespace fsdp::kernels
