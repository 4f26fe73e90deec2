// A double of the CUDA runtime that uses threads, for tests on machines without a GPU. g++ compiles the product's .cu and .cpp
// files with the headers in this folder instead of NVIDIA's, and links them with the library fsdp_cuda_double. These headers
// are also the list of CUDA functions that the product may call. Their names and types are NVIDIA's, with whose headers the
// same files are compiled for GPUs. The double deliberately does what CUDA allows but rarely does, so that code that works only
// by luck fails:
//
// - A stream is a thread with a queue. Each operation is held up at random (see FSDP_CUDA_DOUBLE_SEED), and nothing but events
//   orders two streams. The null stream is NVIDIA's "legacy" one: it waits for all streams made without cudaStreamNonBlocking,
//   and they wait for it. A queue of 1024 operations is full and blocks its giver.
// - Device memory has a memory protection key of the processor, if there is one (guards_memory()): the threads that run
//   kernels, copies and memsets may touch it, and host code that does dies at once. New memory is filled with the bytes 0xff,
//   NaN in every floating-point type. Inaccessible pages are before and after it, and cudaFree finds what is written between
//   the end of an allocation and the next multiple of 256 bytes.
// - A copy from pinned host memory reads it when the operation runs, so that a host that overwrites it too early is found out.
//   Pageable memory is read before the call returns, although the copy itself is made later; a copy to pageable memory is made
//   before the call returns. Both are what CUDA's "API synchronization behavior" allows. cudaMemcpy is the same on the null
//   stream: from pageable memory it returns while the copy to the device is still under way, and from device to device, too.
// - A block runs on its stream's thread. Its lanes are fibers that run one after another, from the first or from the last one,
//   each until it waits for others (cuda_runtime.h).
//
// What CUDA leaves open, or open to discussion, is decided so:
//
// - Waiting for an event takes its last record at the time of the call; a later record, or destroying the event, changes
//   nothing. An event that was never recorded is complete.
// - cudaFree waits for all work of the device, as CUDA's does; the addresses are never used again, so that later uses die.
//   cudaFreeHost does not wait (NVIDIA does not say that it does): what is queued and uses the memory dies.
// - cudaStreamDestroy returns at once; what is queued is still done.
// - A function of cudaLaunchHostFunc may touch no device memory and call nothing of CUDA (cudaErrorNotPermitted).
// - cudaGetLastError also returns the cudaErrorNotReady of an earlier query, as CUDA's does.
//
// It does not find: kernels that read pageable host memory, lanes that race between two barriers if their order does not show
// it, blocks that race with each other, and anything of speed.
//
// Environment variables (FSDP_CUDA_DOUBLE_...). All are read once, except SEED, NAME, CAPABILITIES, ALIGNED and NCCL_VERSION:
//
// - SEED            number for all random choices of the streams that are made from then on, default 0
// - DEVICES         number of devices, 0 to 8, default 1
// - NAME            the devices' name, default "GPU made of threads"
// - CAPABILITIES    compute capabilities of the devices, the last one for all further ones, as 75,80; default 80. They also
//                   determine the shared memory of a block
// - MEMORY          bytes of memory of each device, default 4 GiB. The context takes CONTEXT_MEMORY of them, each handle of
//                   cuBLASLt CUBLASLT_MEMORY, and each communicator of NCCL NCCL_MEMORY for each other rank, from its first
//                   operation on. The default of all three is 1 MiB; the libraries take much more
// - STICKY          number of the launch that fails as a bad address does on a GPU: what is queued does not run, and every
//                   later call of the process returns cudaErrorIllegalAddress, cudaGetLastError too
// - ALIGNED         1: cuBLASLt has no algorithm for 16-bit matrices whose leading dimension is no multiple of 16 bytes
// - SLOW_ALGORITHM  0 or 1: the first or the second algorithm of cuBLASLt takes 2 ms longer
// - NCCL_VERSION    what ncclGetVersion() returns
// - NCCL_ERROR      number of the operation of each communicator that fails with ncclRemoteError
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#define CUDART_VERSION 13000

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorUnknown = 999
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef void (*cudaHostFn_t)(void* userData);

/// NVIDIA's has many more fields.
struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int major;
  int minor;
  int multiProcessorCount;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  std::size_t sharedMemPerBlockOptin;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* userData);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

namespace fsdp::cuda_double {

/// Returns true if host code that accesses device memory is killed: the processor has memory protection keys, and one was free.
bool guards_memory();
/// Returns the number of the host's waits: calls of cudaStreamSynchronize, cudaEventSynchronize and cudaDeviceSynchronize in
/// this process.
std::uint64_t host_waits();
/// Returns how many times the calling thread began to poll a stream: cudaStreamQuery() returned that it is busy, and the
/// previous call for this stream had not.
std::uint64_t streams_found_busy();

struct StreamKind {
  bool blocking;  // made without cudaStreamNonBlocking
  int priority;
};
/// Returns the streams that were made and not destroyed, in this order; not null streams.
std::vector<StreamKind> live_streams();
/// Returns the number of events that were made and not destroyed.
std::uint64_t live_events();

}  // namespace fsdp::cuda_double
