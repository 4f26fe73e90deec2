// Like same_as_nvidia.cpp, for NCCL. A separate file, because NCCL's header includes more of CUDA's headers.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

namespace {

template <class F, class G>
constexpr bool same = std::is_same_v<F, G>;

static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInternalError == 3);
static_assert(ncclInvalidArgument == 4 && ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7);
static_assert(ncclSum == 0 && ncclUint8 == 1 && ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8);
static_assert(ncclBfloat16 == 9 && NCCL_UNIQUE_ID_BYTES == 128 && NCCL_SPLIT_NOCOLOR == -1 && NCCL_VERSION_CODE >= 21800);
static_assert(sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES && same<ncclComm_t, ncclComm*>);
static_assert(same<decltype(ncclConfig_t::size), std::size_t> && same<decltype(ncclConfig_t::magic), unsigned> &&
              same<decltype(ncclConfig_t::version), unsigned> && same<decltype(ncclConfig_t::blocking), int>);
static_assert(offsetof(ncclConfig_t, blocking) == 16 && ncclConfig_t(NCCL_CONFIG_INITIALIZER).magic == 0xcafebeef);
static_assert(ncclConfig_t(NCCL_CONFIG_INITIALIZER).blocking == NCCL_CONFIG_UNDEF_INT);

static_assert(same<decltype(ncclGetVersion), ncclResult_t(int*)> &&
              same<decltype(ncclGetUniqueId), ncclResult_t(ncclUniqueId*)>);
static_assert(same<decltype(ncclGetErrorString), const char*(ncclResult_t)>);
static_assert(same<decltype(ncclGetLastError), const char*(ncclComm_t)>);
static_assert(same<decltype(ncclCommInitRankConfig), ncclResult_t(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*)>);
static_assert(same<decltype(ncclCommSplit), ncclResult_t(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*)>);
static_assert(same<decltype(ncclCommFinalize), ncclResult_t(ncclComm_t)>);
static_assert(same<decltype(ncclCommDestroy), ncclResult_t(ncclComm_t)> &&
              same<decltype(ncclCommAbort), ncclResult_t(ncclComm_t)>);
static_assert(same<decltype(ncclCommGetAsyncError), ncclResult_t(ncclComm_t, ncclResult_t*)>);
static_assert(same<decltype(ncclGroupStart), ncclResult_t()> && same<decltype(ncclGroupEnd), ncclResult_t()>);
static_assert(
    same<decltype(ncclAllGather), ncclResult_t(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t)>);
static_assert(same<decltype(ncclReduceScatter),
                   ncclResult_t(const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)>);
static_assert(same<decltype(ncclAllReduce), decltype(ncclReduceScatter)>);
static_assert(same<decltype(ncclBroadcast),
                   ncclResult_t(const void*, void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)>);
static_assert(same<decltype(ncclSend), ncclResult_t(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)>);
static_assert(same<decltype(ncclRecv), ncclResult_t(void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)>);
static_assert(same<decltype(ncclMemAlloc), ncclResult_t(void**, std::size_t)> &&
              same<decltype(ncclMemFree), ncclResult_t(void*)>);
static_assert(same<decltype(ncclCommRegister), ncclResult_t(ncclComm_t, void*, std::size_t, void**)>);
static_assert(same<decltype(ncclCommDeregister), ncclResult_t(ncclComm_t, void*)>);

}  // namespace
