#include "kernels/threads.hpp"

#include "kernels/gemm_library.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/tile_product.hpp"

#include <omp.h>

#include <algorithm>

namespace fsdp::kernels {

void set_threads(int count) { omp_set_num_threads(count); }
int threads() { return omp_get_max_threads(); }

std::size_t gemm_workspace_bytes(DType type, std::span<const ProductShape> products, const DeviceTraits& device) {
  if (!is_host(device.kind)) return device.gemm_bytes;
  std::size_t library = 0, kept = 0;
  for (const auto& [rows, inner, columns] : products) {
    library = std::max(library, library_workspace_bytes(rows, columns, device.threads));
    if (!multiplies(type))
      kept = std::max(kept, sizeof(float) * (rows * inner + inner * columns + rows * columns));
    else if (type == DType::bf16 && has_tiles())
      kept = device.threads * TileBlocks::workspace_bytes;
  }
  return library + kept;
}

}  // namespace fsdp::kernels
