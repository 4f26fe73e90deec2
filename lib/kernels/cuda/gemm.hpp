// Matrix products by cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/runtime.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// Computes products on one device. For each shape it keeps cuBLASLt's descriptions and the algorithm: that of use(), else the
/// one that cuBLASLt's heuristic ranks first. The algorithm depends only on the shape and on use(), so that a repeated run
/// gives the same bits. Not thread-safe.
class CudaProducts {
 public:
  CudaProducts();
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  /// Returns true if multiply() can compute the product with its epilogue: operands have 16 bits, all rows and the epilogue's
  /// operand begin at multiples of 16 bytes, and cuBLASLt has an algorithm.
  bool takes(const Product& product, std::size_t workspace_bytes);
  /// Queues a product; `workspace` belongs to the stream. Allocates host memory for each new shape.
  void multiply(cudaStream_t stream, const Product& product, void* workspace, std::size_t workspace_bytes);
  /// Returns the algorithms that the heuristic suggests for products like this one, the best first.
  std::vector<GemmAlgorithm> suggested(const Product& product, std::size_t workspace_bytes);
  /// See DeviceKernels::use_algorithm().
  void use(const Product& product, const GemmAlgorithm& algorithm, std::size_t workspace_bytes);
  std::string description() const;

 private:
  /// Everything that the choice of the algorithm depends on.
  struct Shape {
    DType type, out_type;
    Trans trans_a, trans_b;
    std::size_t m, n, k, lda, ldb, ldo;
    Write write;
    Epilogue::Kind epilogue;
    unsigned alignment;  // the smallest alignment of the operands in bytes, at most 16
    auto operator<=>(const Shape&) const = default;
  };
  static Shape shape_of(const Product& product);
  struct Prepared;
  Prepared describe(const Shape& shape);
  std::vector<GemmAlgorithm> suggested(const Shape& shape, const Prepared& described, std::size_t workspace_bytes, int most);
  const Prepared& prepare(const Shape& shape, std::size_t workspace_bytes);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, Prepared> prepared_;
};

}  // namespace fsdp::kernels
