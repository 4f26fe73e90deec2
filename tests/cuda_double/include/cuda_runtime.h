// The device side of CUDA for kernels, on the double of CUDA (see cuda_runtime_api.h). A lane runs until it waits for others:
// at a barrier of its block, a barrier of its warp, or an exchange of values within the warp, which is also a barrier. All
// lanes of a block must reach the same call (the same line and column of a source file). In a warp, all lanes in `mask` must
// reach it, with the same mask. A lane that has returned has not reached it. Any violation ends the process with a message that
// names the kernel and the lanes.
//
// There is no atomicAdd on floating-point numbers: sums would depend on the order of lanes. There is no `extern __shared__`:
// see dynamic_shared() in device/cuda/launch.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
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

using Where = std::source_location;

/// Queues lane() for each lane of `blocks` blocks of `threads`. cudaGetLastError() returns errors.
void launch(cudaStream_t stream, unsigned blocks, unsigned threads, std::size_t shared, const std::type_info& kernel,
            std::function<void()> lane);
/// Returns the running block's dynamic shared memory, aligned to 128 bytes and filled with bytes 0xff when the block begins.
std::byte* dynamic_shared();

/// Waits for the lanes of the warp in `mask`, and returns the bits of lane `source` of the warp.
std::uint64_t exchange(const char* name, unsigned mask, std::uint64_t bits, unsigned source, Where where);
/// Waits for the lanes of the warp in `mask`, and returns a bit for each lane whose value is true.
unsigned vote(const char* name, unsigned mask, bool value, Where where);
/// This lane's place in its warp.
inline unsigned lane_of_warp() { return threadIdx.x % 32; }

/// NVIDIA has overloads for these types (and for some that we do not use).
template <class T>
concept Exchanged = std::is_arithmetic_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8);

template <Exchanged T>
T exchange_value(const char* name, unsigned mask, T value, unsigned source, Where where) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(name, mask, bits, source, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace fsdp::cuda_double

void __syncthreads(std::source_location where = std::source_location::current());

void __syncwarp(unsigned mask = 0xffffffffu, std::source_location where = std::source_location::current());

// The lanes of a warp are divided into groups of `width`, a power of two. A lane that asks for a lane out of reach gets its own
// value.

template <fsdp::cuda_double::Exchanged T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  const unsigned lane = fsdp::cuda_double::lane_of_warp(), w = static_cast<unsigned>(width);
  return fsdp::cuda_double::exchange_value("__shfl_sync", mask, value, lane / w * w + static_cast<unsigned>(source) % w, where);
}

template <fsdp::cuda_double::Exchanged T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   std::source_location where = std::source_location::current()) {
  const unsigned lane = fsdp::cuda_double::lane_of_warp(), w = static_cast<unsigned>(width);
  const unsigned source = lane % w + delta < w ? lane + delta : lane;
  return fsdp::cuda_double::exchange_value("__shfl_down_sync", mask, value, source, where);
}

template <fsdp::cuda_double::Exchanged T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const unsigned lane = fsdp::cuda_double::lane_of_warp(), w = static_cast<unsigned>(width);
  const unsigned other = lane ^ static_cast<unsigned>(lane_mask);
  const unsigned source = other < lane / w * w + w ? other : lane;  // groups below one's own are within reach, as in PTX
  return fsdp::cuda_double::exchange_value("__shfl_xor_sync", mask, value, source, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return fsdp::cuda_double::vote("__ballot_sync", mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return fsdp::cuda_double::vote("__any_sync", mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return fsdp::cuda_double::vote("__all_sync", mask, predicate != 0, where) == mask;
}

inline int atomicAdd(int* to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
