// Errors, devices, and calls that do not use a stream.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_runtime.h"
#include "double.hpp"

namespace fsdp::cuda_double {

constinit thread_local bool in_host_function = false;
constinit std::atomic<bool> has_failed = false;

namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;
constinit thread_local int this_device = 0;

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

/// "75,80": of the first device and of all others.
long capability_of(int device) {
  const char* at = std::getenv("FSDP_CUDA_DOUBLE_CAPABILITIES");
  if (!at || !*at) return 80;
  for (; device > 0 && std::strchr(at, ','); --device) at = std::strchr(at, ',') + 1;
  return std::strtol(at, nullptr, 10);
}

const ErrorText& text_of(cudaError_t error) {
  for (const ErrorText& text : error_texts)
    if (text.error == error) return text;
  static constexpr ErrorText unknown{cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};
  return unknown;
}

}  // namespace

void die(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "the double of CUDA: %s\n", message.c_str());
  std::abort();
}

std::uint64_t environment_number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*end || *text == '-') die(std::string(name) + "=" + text + " is no whole number (it is read as one) write digits alone");
  return value;
}

cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

int device_count() {
  static const auto count = static_cast<int>(std::min<std::uint64_t>(8, environment_number("FSDP_CUDA_DOUBLE_DEVICES", 1)));
  return count;
}

int first_device() { return static_cast<int>(environment_number("FSDP_CUDA_DOUBLE_FIRST", 0)); }

int current_device() { return this_device; }

/// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
std::size_t shared_bytes_at_most(int device) {
  const long capability = capability_of(device);
  const bool is_small = capability == 86 || capability == 89 || capability >= 120;
  return std::size_t{1024} * (capability < 80 ? 64 : is_small ? 99 : capability < 90 ? 163 : 227);
}

}  // namespace fsdp::cuda_double

using namespace fsdp::cuda_double;

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return has_failed ? cudaErrorIllegalAddress : last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = device_count() > 0 ? CUDART_VERSION : 0;  // 0: no driver is installed
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return call([] { return cudaSuccess; });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([=] {
    if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
    *properties = {};
    const char* const name = std::getenv("FSDP_CUDA_DOUBLE_NAME");
    std::strncpy(properties->name, name && *name ? name : "GPU made of threads", sizeof properties->name - 1);
    properties->totalGlobalMem = total_memory();
    properties->sharedMemPerBlock = std::size_t{48} * 1024;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    const auto capability = static_cast<int>(capability_of(device));
    properties->major = capability / 10;
    properties->minor = capability % 10;
    properties->multiProcessorCount = 4;
    properties->pciBusID = first_device() + device + 1;
    properties->sharedMemPerBlockOptin = shared_bytes_at_most(device);
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([=] {
    if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
    this_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call([=] {
    *device = this_device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([] {
    synchronize_device(this_device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call([=] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}
