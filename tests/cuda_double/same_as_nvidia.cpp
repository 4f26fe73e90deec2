// The double's declarations are NVIDIA's: this file is compiled against the headers of both.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
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

// cuBLASLt.
static_assert(CUBLAS_STATUS_SUCCESS == 0 && CUBLAS_STATUS_NOT_INITIALIZED == 1 && CUBLAS_STATUS_ALLOC_FAILED == 3);
static_assert(CUBLAS_STATUS_INVALID_VALUE == 7 && CUBLAS_STATUS_EXECUTION_FAILED == 13 && CUBLAS_STATUS_INTERNAL_ERROR == 14);
static_assert(CUBLAS_STATUS_NOT_SUPPORTED == 15);
static_assert(CUDA_R_32F == 0 && CUDA_R_16F == 2 && CUDA_R_16BF == 14 && CUBLAS_COMPUTE_32F == 68);
static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1 && CUBLASLT_ORDER_COL == 0 && CUBLASLT_ORDER_ROW == 1);
static_assert(CUBLASLT_EPILOGUE_DEFAULT == 1 && CUBLASLT_EPILOGUE_BIAS == 4);
static_assert(CUBLASLT_MATRIX_LAYOUT_ORDER == 1 && CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT == 5);
static_assert(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET == 6);
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATMUL_DESC_TRANSB == 4 && CUBLASLT_MATMUL_DESC_EPILOGUE == 7);
static_assert(CUBLASLT_MATMUL_DESC_BIAS_POINTER == 8 && CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1);
static_assert(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == 3 && CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == 2);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == 6);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == 7 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8);

static_assert(same<cudaDataType, cudaDataType_t> && same<cublasLtHandle_t, cublasLtContext*>);
static_assert(sizeof(cublasLtMatmulAlgo_t) == 64 && sizeof(*cublasLtMatrixLayout_t{}) == 64);
static_assert(sizeof(*cublasLtMatmulDesc_t{}) == 256 && sizeof(*cublasLtMatmulPreference_t{}) == 64);
static_assert(same<decltype(cublasLtMatmulHeuristicResult_t::algo), cublasLtMatmulAlgo_t>);
static_assert(same<decltype(cublasLtMatmulHeuristicResult_t::workspaceSize), std::size_t>);
static_assert(same<decltype(cublasLtMatmulHeuristicResult_t::state), cublasStatus_t>);
static_assert(same<decltype(cublasLtMatmulHeuristicResult_t::wavesCount), float>);

static_assert(same<decltype(cublasGetStatusString), const char*(cublasStatus_t)>);
static_assert(same<decltype(cublasLtGetStatusString), const char*(cublasStatus_t)>);
static_assert(same<decltype(cublasLtGetVersion), std::size_t()>);
static_assert(same<decltype(cublasLtCreate), cublasStatus_t(cublasLtHandle_t*)>);
static_assert(same<decltype(cublasLtDestroy), cublasStatus_t(cublasLtHandle_t)>);
static_assert(
    same<decltype(cublasLtMatmulDescCreate), cublasStatus_t(cublasLtMatmulDesc_t*, cublasComputeType_t, cudaDataType_t)>);
static_assert(same<decltype(cublasLtMatmulDescDestroy), cublasStatus_t(cublasLtMatmulDesc_t)>);
static_assert(same<decltype(cublasLtMatmulDescSetAttribute),
                   cublasStatus_t(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*, std::size_t)>);
static_assert(same<decltype(cublasLtMatrixLayoutCreate),
                   cublasStatus_t(cublasLtMatrixLayout_t*, cudaDataType, std::uint64_t, std::uint64_t, std::int64_t)>);
static_assert(same<decltype(cublasLtMatrixLayoutDestroy), cublasStatus_t(cublasLtMatrixLayout_t)>);
static_assert(same<decltype(cublasLtMatrixLayoutSetAttribute),
                   cublasStatus_t(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void*, std::size_t)>);
static_assert(same<decltype(cublasLtMatmulPreferenceCreate), cublasStatus_t(cublasLtMatmulPreference_t*)>);
static_assert(same<decltype(cublasLtMatmulPreferenceDestroy), cublasStatus_t(cublasLtMatmulPreference_t)>);
static_assert(same<decltype(cublasLtMatmulPreferenceSetAttribute),
                   cublasStatus_t(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, std::size_t)>);
static_assert(same<decltype(cublasLtMatmulAlgoGetHeuristic),
                   cublasStatus_t(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                  cublasLtMatmulHeuristicResult_t*, int*)>);
static_assert(same<decltype(cublasLtMatmul),
                   cublasStatus_t(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,
                                  const void*, cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t, void*,
                                  cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t)>);

}  // namespace
