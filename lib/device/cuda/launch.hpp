// launch_kernel() launches every kernel of this program. A kernel is a functor. nvcc compiles the launch to <<<>>>. Tests
// without a GPU use a replacement of CUDA (tests/cuda_double), which runs the threads of a kernel as fibers on the CPU. Only
// .cu files include this header. These files are compiled with FSDP_GPU, and for the replacement of CUDA also with
// FSDP_CUDA_DOUBLE.
#pragma once

#include <cstddef>
#include <type_traits>

#include "device/cuda/runtime.hpp"

namespace fsdp {

/// The largest number of threads in a block of `Kernel`: Kernel::most_threads if it is defined, else 1024. With a smaller
/// number, each thread may use more registers.
template <class Kernel>
inline constexpr unsigned most_threads = 1024;
template <class Kernel>
requires(Kernel::most_threads > 0) inline constexpr unsigned most_threads<Kernel> = Kernel::most_threads;

/// A kernel with an array that it accesses by index: Kernel::indexes_arguments() returns true. If run_kernel() ran it, nvcc
/// would copy its arguments to the local memory of each thread.
template <class Kernel>
concept IndexesArguments = Kernel::indexes_arguments();

#if !defined(FSDP_CUDA_DOUBLE)
/// The __global__ function of all other kernels. With __launch_bounds__, nvcc limits a thread's registers so that a block of
/// most_threads<Kernel> fits on a multiprocessor; so a launch cannot fail because of its registers, and tests need not compare
/// these with the launch.
template <class Kernel>
__global__ void __launch_bounds__(most_threads<Kernel>) run_kernel(const Kernel kernel) {
  kernel();
}
template <IndexesArguments Kernel>
__global__ void __launch_bounds__(most_threads<Kernel>) run_constant_kernel(const __grid_constant__ Kernel kernel) {
  kernel();
}
#endif

/// Returns the dynamic shared memory of the block, aligned to 128 bytes.
__device__ inline std::byte* dynamic_shared() {
#if defined(FSDP_CUDA_DOUBLE)
  return cuda_double::dynamic_shared();
#else
  extern __shared__ __align__(128) std::byte fsdp_dynamic_shared[];
  return fsdp_dynamic_shared;
#endif
}

/// Launches kernel() with `blocks` blocks of `threads` threads and `shared` bytes of dynamic shared memory per block. The
/// functor is copied; its pointers must point to device memory. Returns the result of cudaGetLastError().
template <class Kernel>
cudaError_t launch_kernel(cudaStream_t stream, unsigned blocks, unsigned threads, std::size_t shared, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel> && sizeof(Kernel) <= 4096,
                "a kernel's arguments are 4 KiB of plain bytes");
  if (threads > most_threads<Kernel>) return cudaErrorInvalidConfiguration;
#if defined(FSDP_CUDA_DOUBLE)
  cuda_double::launch(stream, blocks, threads, shared, typeid(Kernel), [kernel] { kernel(); });
#else
  constexpr auto run = [] {
    if constexpr (IndexesArguments<Kernel>)
      return run_constant_kernel<Kernel>;
    else
      return run_kernel<Kernel>;
  }();
  // CUDA requires this call before the first launch with more than 48 KiB of shared memory. Repeating it costs little.
  if (shared > std::size_t{48} * 1024) {
    const cudaError_t status = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (status != cudaSuccess) return status;
  }
  // clang-format off
  run<<<blocks, threads, shared, stream>>>(kernel);
  // clang-format on
#endif
  return cudaGetLastError();
}

}  // namespace fsdp
