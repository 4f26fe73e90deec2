// Declarations that the files of the double share. In comments, "a call" is a CUDA function that host code has called.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <typeinfo>

#include "cuda_runtime.h"

namespace fsdp::cuda_double {

/// Ends the process: the product has a fault that CUDA would not report.
[[noreturn]] void die(const std::string& message);

/// Reads a whole number from the environment.
std::uint64_t environment_number(const char* name, std::uint64_t otherwise);

// --- Calls (runtime.cpp) ---

/// Whether the calling thread runs a function of cudaLaunchHostFunc.
extern constinit thread_local bool in_host_function;

/// What cudaGetLastError() of this thread will return, unless that is cudaSuccess; returns it.
cudaError_t remember(cudaError_t status);

int device_count();
/// The number of GPUs that are hidden before the first one, as by CUDA_VISIBLE_DEVICES: FSDP_CUDA_DOUBLE_FIRST.
int first_device();
/// The most shared memory of a block, by the device's compute capability.
std::size_t shared_bytes_at_most(int device);
/// Of the calling thread.
int current_device();

/// Set when launch FSDP_CUDA_DOUBLE_STICKY of this process has run: as after a bad address on CUDA, every later call fails, and
/// what is queued is dropped.
extern constinit std::atomic<bool> has_failed;

/// Runs the body of a call, where calls are allowed.
template <class F>
cudaError_t call(F body) {
  if (in_host_function) return remember(cudaErrorNotPermitted);
  if (device_count() == 0) return remember(cudaErrorNoDevice);
  const cudaError_t status = has_failed ? cudaErrorIllegalAddress : body();
  return remember(has_failed ? cudaErrorIllegalAddress : status);  // also for a body that waited for the bad launch
}

// --- Memory (memory.cpp) ---

/// Sets whether the calling thread may access device memory.
void allow_device_memory(bool allowed);

/// The kind of memory of a range of addresses. A range that begins in an allocation and ends outside of it is `broken`.
enum class Place { pageable, pinned, device, broken };
Place place_of(const void* begin, std::size_t bytes);

std::size_t total_memory();
/// Takes memory of a device for a library; returns false if there is too little.
bool take_memory(int device, std::size_t bytes);
void return_memory(int device, std::size_t bytes);

/// Readable and writable pages that end at `end`, with an inaccessible page before and after them. They exist as long as the
/// process unless they are released.
struct GuardedPages {
  std::byte* mapping = nullptr;
  std::size_t mapped = 0;
  std::byte *begin = nullptr, *end = nullptr;
};
/// Throws std::bad_alloc.
GuardedPages map_guarded(std::size_t bytes);
void unmap(const GuardedPages& pages);

// --- Blocks (block.cpp) ---

struct Launch {
  unsigned blocks, threads;
  std::size_t shared;
  const std::type_info* kernel;
  std::function<void()> lane;
};
/// Runs all blocks on the calling thread.
void run(const Launch& launch, std::minstd_rand& dice);

/// Ends the process with a message that names the kernel and the calling lane.
[[noreturn]] void refuse(const std::string& text);

// --- Streams (streams.cpp) ---

/// An operation of a stream, with the stream's source of random numbers.
using Operation = std::function<void(std::minstd_rand&)>;

/// The stream behind a handle; the calling thread's null stream for null. Null if there is none.
std::shared_ptr<CUstream_st> find_stream(cudaStream_t handle);
int device_of(const CUstream_st& stream);

/// Queues an operation after all operations that a stream of this kind must wait for; returns its number.
std::uint64_t give(const std::shared_ptr<CUstream_st>& stream, Operation operation);
/// Blocks the caller until the operation is done.
void wait(const CUstream_st& stream, std::uint64_t number);
/// Blocks the caller until all work of the device is done.
void synchronize_device(int device);

}  // namespace fsdp::cuda_double
