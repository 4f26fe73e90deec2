// How many OpenMP threads the kernels of the calling thread use. OpenMP keeps the number per calling thread, so that each
// logical rank of a test has its own.
#pragma once

#include <cstddef>

namespace fsdp::kernels {

void set_threads(int count);
int threads();

/// About what oneDNN's gemm takes for packed panels and gives back, beside the memory plan: panels of 384 along k of both
/// operands, where the largest product has `rows` x `columns` results. From measurements of version 2.6.3.
std::size_t gemm_workspace_bytes(std::size_t rows, std::size_t columns);

}  // namespace fsdp::kernels
