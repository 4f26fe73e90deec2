// bf16 products by BFMMLA, compiled for its instructions as level 10. The rules of rows/cpu.cpp about names and inlining hold
// here, too.
#include "kernels/rows/tile_gemm.hpp"

namespace fsdp::kernels {

FSDP_INSTANTIATE_TILE_PRODUCTS(10)

}  // namespace fsdp::kernels
