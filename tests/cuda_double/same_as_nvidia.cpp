// The double's declarations are NVIDIA's: this file is compiled against the headers of both.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

namespace {

template <class F, class G>
constexpr bool same = std::is_same_v<F, G>;

static_assert(cudaSuccess == 0 && cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2 &&
              cudaErrorInvalidConfiguration == 9);
static_assert(cudaErrorInvalidMemcpyDirection == 21 && cudaErrorInsufficientDriver == 35 && cudaErrorNoDevice == 100);
static_assert(cudaErrorInvalidDevice == 101 && cudaErrorInvalidResourceHandle == 400 && cudaErrorNotReady == 600);
static_assert(cudaErrorIllegalAddress == 700 && cudaErrorLaunchFailure == 719 && cudaErrorNotPermitted == 800);
static_assert(cudaErrorUnknown == 999);
static_assert(cudaMemcpyHostToHost == 0 && cudaMemcpyHostToDevice == 1 && cudaMemcpyDeviceToHost == 2);
static_assert(cudaMemcpyDeviceToDevice == 3 && cudaMemcpyDefault == 4);
static_assert(cudaStreamDefault == 0 && cudaStreamNonBlocking == 1);
static_assert(cudaEventDefault == 0 && cudaEventBlockingSync == 1 && cudaEventDisableTiming == 2);

static_assert(same<cudaStream_t, CUstream_st*> && same<cudaEvent_t, CUevent_st*> && same<cudaHostFn_t, void (*)(void*)>);
static_assert(same<decltype(cudaDeviceProp::name), char[256]> && same<decltype(cudaDeviceProp::totalGlobalMem), std::size_t>);
static_assert(same<decltype(cudaDeviceProp::sharedMemPerBlock), std::size_t> && same<decltype(cudaDeviceProp::warpSize), int>);
static_assert(same<decltype(cudaDeviceProp::maxThreadsPerBlock), int> && same<decltype(cudaDeviceProp::major), int>);
static_assert(same<decltype(cudaDeviceProp::minor), int> && same<decltype(cudaDeviceProp::multiProcessorCount), int>);
static_assert(same<decltype(cudaDeviceProp::pciBusID), int> && same<decltype(cudaDeviceProp::pciDeviceID), int>);
static_assert(same<decltype(cudaDeviceProp::pciDomainID), int>);
static_assert(same<decltype(cudaDeviceProp::sharedMemPerBlockOptin), std::size_t>);

static_assert(same<decltype(cudaGetErrorName), const char*(cudaError_t)> &&
              same<decltype(cudaGetErrorString), const char*(cudaError_t)>);
static_assert(same<decltype(cudaGetLastError), cudaError_t()> && same<decltype(cudaPeekAtLastError), cudaError_t()>);
static_assert(same<decltype(cudaDriverGetVersion), cudaError_t(int*)> &&
              same<decltype(cudaRuntimeGetVersion), cudaError_t(int*)>);
static_assert(same<decltype(cudaGetDeviceCount), cudaError_t(int*)>);
static_assert(same<decltype(cudaGetDeviceProperties), cudaError_t(cudaDeviceProp*, int)>);
static_assert(same<decltype(cudaSetDevice), cudaError_t(int)> && same<decltype(cudaGetDevice), cudaError_t(int*)>);
static_assert(same<decltype(cudaDeviceSynchronize), cudaError_t()>);
static_assert(same<decltype(cudaDeviceGetStreamPriorityRange), cudaError_t(int*, int*)>);

static_assert(same<decltype(cudaMemGetInfo), cudaError_t(std::size_t*, std::size_t*)>);
static_assert(same<decltype(cudaMalloc), cudaError_t(void**, std::size_t)> && same<decltype(cudaFree), cudaError_t(void*)>);
static_assert(same<decltype(cudaMallocHost), cudaError_t(void**, std::size_t)> &&
              same<decltype(cudaFreeHost), cudaError_t(void*)>);
static_assert(same<decltype(cudaMemcpy), cudaError_t(void*, const void*, std::size_t, cudaMemcpyKind)>);
static_assert(same<decltype(cudaMemcpyAsync), cudaError_t(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t)>);
static_assert(same<decltype(cudaMemset), cudaError_t(void*, int, std::size_t)>);
static_assert(same<decltype(cudaMemsetAsync), cudaError_t(void*, int, std::size_t, cudaStream_t)>);

static_assert(same<decltype(cudaStreamCreateWithPriority), cudaError_t(cudaStream_t*, unsigned, int)>);
static_assert(same<decltype(cudaStreamDestroy), cudaError_t(cudaStream_t)>);
static_assert(same<decltype(cudaStreamSynchronize), cudaError_t(cudaStream_t)>);
static_assert(same<decltype(cudaStreamQuery), cudaError_t(cudaStream_t)>);
static_assert(same<decltype(cudaStreamWaitEvent), cudaError_t(cudaStream_t, cudaEvent_t, unsigned)>);
static_assert(same<decltype(cudaLaunchHostFunc), cudaError_t(cudaStream_t, cudaHostFn_t, void*)>);
static_assert(same<decltype(cudaEventCreateWithFlags), cudaError_t(cudaEvent_t*, unsigned)>);
static_assert(same<decltype(cudaEventDestroy), cudaError_t(cudaEvent_t)>);
static_assert(same<decltype(cudaEventRecord), cudaError_t(cudaEvent_t, cudaStream_t)>);
static_assert(same<decltype(cudaEventSynchronize), cudaError_t(cudaEvent_t)> &&
              same<decltype(cudaEventQuery), cudaError_t(cudaEvent_t)>);
static_assert(same<decltype(cudaEventElapsedTime), cudaError_t(float*, cudaEvent_t, cudaEvent_t)>);

}  // namespace
