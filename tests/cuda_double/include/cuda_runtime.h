// The device side of CUDA for kernels, on the double of CUDA (see cuda_runtime_api.h): the part that kernels use. A lane runs
// until it waits for others: at a barrier of its block, or at a call of a whole warp, which is a barrier, too. If lanes wait
// for different barriers, or for one that has returned, the process ends with a message that names the kernel.
//
// There is no atomicAdd on floating-point numbers: sums would depend on the order of lanes. There is no `extern __shared__`:
// see dynamic_shared() in device/cuda/launch.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <typeinfo>

#include "cuda_runtime_api.h"

#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static thread_local  // a block runs on one thread

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
// Accessed without a call: these few bytes fit into the memory that the system reserves for libraries that are loaded later.
#define FSDP_CUDA_DOUBLE_LANE thread_local __attribute__((tls_model("initial-exec")))
extern constinit FSDP_CUDA_DOUBLE_LANE uint3 threadIdx, blockIdx;
extern constinit FSDP_CUDA_DOUBLE_LANE dim3 blockDim, gridDim;

/// NVIDIA's C++ headers have these, too.
template <class T>
cudaError_t cudaMalloc(T** memory, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** memory, std::size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(memory), bytes);
}

namespace fsdp::cuda_double {

/// Queues lane() for each lane of `blocks` blocks of `threads`. cudaGetLastError() returns errors.
void launch(cudaStream_t stream, unsigned blocks, unsigned threads, std::size_t shared, const std::type_info& kernel,
            std::function<void()> lane);
/// Returns the running block's dynamic shared memory, aligned to 128 bytes and filled with bytes 0xff when the block begins.
std::byte* dynamic_shared();

/// This lane's place in its warp.
inline unsigned lane_of_warp() { return threadIdx.x % 32; }
/// Waits for the whole warp. The last lane to arrive calls together() with what all lanes have brought, before any lane
/// continues.
using Together = void (*)(void* const* brought);
void meet(void* mine, Together together);

}  // namespace fsdp::cuda_double

void __syncthreads();

inline void __syncwarp() { fsdp::cuda_double::meet(nullptr, nullptr); }

// Kernels call these functions with all lanes of a warp: the mask is 0xffffffff.

template <class T>
T __shfl_xor_sync(unsigned, T value, int lane_mask) {
  struct Lane {
    T value, result;
    unsigned source;
  } mine{value, value, fsdp::cuda_double::lane_of_warp() ^ static_cast<unsigned>(lane_mask)};
  fsdp::cuda_double::meet(&mine, [](void* const* lanes) {
    for (unsigned i = 0; i < 32; ++i) {
      Lane& lane = *static_cast<Lane*>(lanes[i]);
      lane.result = static_cast<const Lane*>(lanes[lane.source])->value;
    }
  });
  return mine.result;
}

inline int __any_sync(unsigned, int predicate) {
  fsdp::cuda_double::meet(&predicate, [](void* const* lanes) {
    int any = 0;
    for (unsigned i = 0; i < 32; ++i) any |= *static_cast<const int*>(lanes[i]);
    for (unsigned i = 0; i < 32; ++i) *static_cast<int*>(lanes[i]) = any;
  });
  return predicate;
}

inline int __reduce_max_sync(unsigned, int value) {
  fsdp::cuda_double::meet(&value, [](void* const* lanes) {
    int most = *static_cast<const int*>(lanes[0]);
    for (unsigned i = 1; i < 32; ++i) most = std::max(most, *static_cast<const int*>(lanes[i]));
    for (unsigned i = 0; i < 32; ++i) *static_cast<int*>(lanes[i]) = most;
  });
  return value;
}

/// a + b, rounded down. The sum is finite. Its error is computed as in Knuth's "The Art of Computer Programming", 4.2.2.
inline double __dadd_rd(double a, double b) {
  const double sum = a + b, b_of_sum = sum - a, error = (a - (sum - b_of_sum)) + (b - b_of_sum);
  return error < 0 ? std::nextafter(sum, -INFINITY) : sum;
}

inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
