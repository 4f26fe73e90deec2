// launch_kernel() starts all kernels. A kernel is a functor that runs on the threads of a GPU: with nvcc by <<<>>>, and on the
// double of CUDA for tests (tests/cuda_double) as fibers. Only .cu files include this header. They are compiled with FSDP_GPU,
// and with FSDP_CUDA_DOUBLE for the double.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace fsdp {

/// The largest number of threads in a block of the kernel: its `static constexpr unsigned most_threads`. With a smaller number,
/// each thread may use more registers.
template <class Kernel>
inline constexpr unsigned most_threads = 1024;
template <class Kernel>
requires(Kernel::most_threads > 0) inline constexpr unsigned most_threads<Kernel> = Kernel::most_threads;

#if !defined(FSDP_CUDA_DOUBLE)
template <class Kernel>
__global__ void __launch_bounds__(most_threads<Kernel>) run_kernel(const Kernel kernel) {
  kernel();
}
#endif

/// The dynamic shared memory of the block, aligned to 128 bytes.
__device__ inline std::byte* dynamic_shared() {
#if defined(FSDP_CUDA_DOUBLE)
  return cuda_double::dynamic_shared();
#else
  extern __shared__ __align__(128) std::byte fsdp_dynamic_shared[];
  return fsdp_dynamic_shared;
#endif
}

/// Queues kernel() on `blocks` blocks of `threads` threads with `shared` bytes of dynamic shared memory. The kernel is copied;
/// its pointers must point to device memory. Returns the result of cudaGetLastError().
template <class Kernel>
cudaError_t launch_kernel(cudaStream_t stream, unsigned blocks, unsigned threads, std::size_t shared, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel> && sizeof(Kernel) <= 4096,
                "a kernel's arguments are 4 KiB of plain bytes");
  if (threads > most_threads<Kernel>) return cudaErrorInvalidConfiguration;
#if defined(FSDP_CUDA_DOUBLE)
  cuda_double::launch(stream, blocks, threads, shared, typeid(Kernel), [kernel] { kernel(); });
#else
  // More than 48 KiB must be requested once per kernel and device. Repeating the request costs little.
  if (shared > std::size_t{48} * 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (status != cudaSuccess) return status;
  }
  // clang-format off
  run_kernel<<<blocks, threads, shared, stream>>>(kernel);
  // clang-format on
#endif
  return cudaGetLastError();
}

}  // namespace fsdp
