// The interface between gemm() and the library that multiplies matrices on the CPU: oneDNN (gemm_onednn.cpp) or OpenBLAS
// (gemm_openblas.cpp). CMake compiles one of the two files (FSDP_BLAS). Private to kernels/.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// The sizes and strides of a product, as in gemm().
struct Operands {
  Trans trans_a, trans_b;
  std::size_t m, n, k, lda, ldb, ldo;
  Write write;
};

/// The library's products, which run on OpenMP's threads, or on the calling thread inside a parallel region. Products of bf16
/// numbers are for machines on which library_multiplies_bf16() returns true.
void library_multiply(const Operands& o, const float* a, const float* b, float* out);
void library_multiply(const Operands& o, const bf16* a, const bf16* b, float* out);
void library_multiply(const Operands& o, const bf16* a, const bf16* b, bf16* out);
bool library_multiplies_bf16();
/// Returns false if the user disabled AMX in the library's settings.
bool library_allows_amx();
/// The approximate memory that the library takes for a product of fp32 matrices on `threads` threads.
std::size_t library_workspace_bytes(std::size_t m, std::size_t n, std::size_t threads);
/// The library's name and version, and the instruction set for which it chose its code: "oneDNN 2.6.3, avx512_core_amx".
std::string library_description();

}  // namespace fsdp::kernels
