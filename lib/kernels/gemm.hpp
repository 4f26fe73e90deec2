// gemm() without a stream, for kernels that are made of products and are timed as a whole.
#pragma once

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// As gemm(), on the calling thread if that is inside a parallel region.
void untimed_gemm(Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const float* a, std::size_t lda, const float* b,
                  std::size_t ldb, float* out, std::size_t ldo, Write write);

}  // namespace fsdp::kernels
