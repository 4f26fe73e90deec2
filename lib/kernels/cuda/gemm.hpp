// Products of matrices by cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <map>
#include <string>

#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// The products that one device has met, each with what cuBLASLt has prepared for it and the algorithm that its heuristic names
/// first: a function of the shape, so that a run repeats. Not for several threads at a time.
class CudaProducts {
 public:
  CudaProducts();
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  /// Queues a product; `workspace` is the stream's own. Allocates when it meets a shape for the first time.
  void multiply(cudaStream_t stream, const Product& product, void* workspace, std::size_t workspace_bytes);
  std::string description() const;

 private:
  /// All that the algorithm depends on.
  struct Shape {
    DType type, out_type;
    Trans trans_a, trans_b;
    std::size_t m, n, k, lda, ldb, ldo;
    Write write;
    unsigned alignment;  // of the least aligned operand, in bytes up to 256: some algorithms load 16 bytes at a time
    auto operator<=>(const Shape&) const = default;
  };
  struct Prepared;
  const Prepared& prepare(const Shape& shape, std::size_t workspace_bytes);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, Prepared> prepared_;
};

}  // namespace fsdp::kernels
