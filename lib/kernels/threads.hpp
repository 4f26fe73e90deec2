// How many OpenMP threads the kernels of the calling thread use. OpenMP keeps the number per calling thread, so that each logical rank of a
// test has its own.
#pragma once

#include <cstddef>

namespace fsdp::kernels {

void set_threads(int count);
int threads();

/// Memory that oneDNN's gemm takes for packed panels and gives back, beside the memory plan: an upper bound from measurements of version 2.6.3.
std::size_t gemm_workspace_bytes(int threads);

}  // namespace fsdp::kernels
