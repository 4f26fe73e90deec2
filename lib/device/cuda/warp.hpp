// Warps: the lanes of a block that execute together, and exchange values without shared memory. Only this file has CUDA's
// functions for this. A warp has 32 lanes. AMD's GPUs for data centres have 64. Kernels use warp_size, except for those on
// tensor cores, whose fragments are spread over 32 lanes (kernels/cuda/tensor_core.hpp). Only code for GPUs includes this
// header.
//
// All lanes of the warp call each function together, and it is a barrier for them.
#pragma once

#include "device/cuda/runtime.hpp"

namespace fsdp {

inline constexpr unsigned warp_size = 32;
inline constexpr unsigned most_threads_of_block = 1024;

/// This lane's number in its warp, and this warp's number in its block.
__device__ __forceinline__ unsigned lane_of_warp() { return threadIdx.x % warp_size; }
__device__ __forceinline__ unsigned warp_of_block() { return threadIdx.x / warp_size; }

/// Returns the value of the lane whose number differs from this lane's by an exclusive or with `distance`.
template <class T>
__device__ __forceinline__ T exchange(T value, unsigned distance) {
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(distance));
}
/// True if `mine` is true in a lane of the warp.
__device__ __forceinline__ bool any_lane(bool mine) { return __any_sync(0xffffffffu, mine) != 0; }
/// Returns the largest of the lanes' values.
__device__ __forceinline__ int largest_of_warp(int mine) { return __reduce_max_sync(0xffffffffu, mine); }
/// Returns a + b, rounded down.
__device__ __forceinline__ double add_rounded_down(double a, double b) { return __dadd_rd(a, b); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

}  // namespace fsdp
