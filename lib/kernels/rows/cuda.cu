#include "kernels/rows/cuda.hpp"

#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

namespace {

constexpr int threads = 256;
constexpr std::size_t most_blocks = std::size_t{1} << 20;

template <class Body>
__global__ void __launch_bounds__(threads) rows_kernel(Body body, std::size_t rows) {
  for (std::size_t r = blockIdx.x; r < rows; r += gridDim.x) body(CudaLanes{}, r);
}

}  // namespace

template <class Body>
cudaError_t run_rows_cuda(cudaStream_t stream, const Body& body, std::size_t rows) {
  if (rows == 0) return cudaSuccess;
  rows_kernel<<<static_cast<unsigned>(rows < most_blocks ? rows : most_blocks), threads, 0, stream>>>(body, rows);
  return cudaGetLastError();
}

#define FSDP_INSTANTIATE(...) template cudaError_t run_rows_cuda<__VA_ARGS__>(cudaStream_t, const __VA_ARGS__&, std::size_t);
FSDP_ROW_BODIES(FSDP_INSTANTIATE)
FSDP_ELEMENT_UPDATES(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
