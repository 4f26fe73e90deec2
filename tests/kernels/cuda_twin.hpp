// Shared by the programs that compare kernels on a GPU with those on the CPU: device memory, the CPU's stream, and numbers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "device/device.hpp"

namespace fsdp::test {

inline int failures = 0;

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

/// Exits with 77, which means skipped for CTest, if there is no device.
inline void skip_without_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return;
  std::puts("skipped: no CUDA device");
  std::exit(77);
}

/// A copy of `host` on the device.
template <class T>
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<T>& host) : size_(host.size()) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(T)), "cudaMalloc");
    check(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~DeviceCopy() { cudaFree(data_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  T* data() const { return data_; }
  std::vector<T> fetch() const {
    std::vector<T> host(size_);
    check(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

inline Stream& cpu() {
  static const std::shared_ptr<Stream> stream = make_host_stream();
  return *stream;
}

/// Numbers in (-2, 2).
inline std::vector<float> numbers(std::size_t n, std::uint32_t state = 1) {
  std::vector<float> x(n);
  for (float& value : x) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-30f;
  }
  return x;
}

}  // namespace fsdp::test
