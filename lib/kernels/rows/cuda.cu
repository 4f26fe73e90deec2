// Launches row kernels on GPUs, with one thread block per row.
#include "kernels/rows/cuda.hpp"

#include "device/cuda/launch.hpp"
#include "kernels/rows/bodies.hpp"
#include "kernels/rows/tape.hpp"

namespace fsdp::kernels {

namespace {

constexpr std::size_t most_blocks = std::size_t{1} << 20;
#if defined(FSDP_CUDA_DOUBLE)
constexpr unsigned threads = 64;  // in the emulation each thread takes time, and two warps test the same code as eight
#else
constexpr unsigned threads = default_threads;
#endif

/// The largest number of threads of a block, for the compiler's choice of registers.
template <class Body>
inline constexpr unsigned most_threads_of = HasWidth<Body> ? default_threads : threads;
template <class Body>
requires(Body::cuda_threads > 0) inline constexpr unsigned most_threads_of<Body> = Body::cuda_threads;

template <class Body>
struct Rows {
  static constexpr unsigned most_threads = most_threads_of<Body>;
  static constexpr bool indexes_arguments() { return std::is_same_v<Body, TapeTiles>; }
  Body body;
  std::size_t rows;

  __device__ void operator()() const {
    for (std::size_t r = blockIdx.x; r < rows; r += gridDim.x) body(CudaLanes{}, r);
  }
};

}  // namespace

template <class Body>
cudaError_t run_rows_cuda(cudaStream_t stream, const Body& body, std::size_t rows) {
  if (rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(rows < most_blocks ? rows : most_blocks);
  return launch_kernel(stream, blocks, threads_of(body, threads), 0, Rows<Body>{body, rows});
}

#define FSDP_INSTANTIATE(...) template cudaError_t run_rows_cuda<__VA_ARGS__>(cudaStream_t, const __VA_ARGS__&, std::size_t);
FSDP_ROW_BODIES(FSDP_INSTANTIATE)
FSDP_ELEMENT_UPDATES(FSDP_INSTANTIATE)
FSDP_TAPE_BODIES(FSDP_INSTANTIATE)
FSDP_INSTANTIATE(TapeTiles)

}  // namespace fsdp::kernels
