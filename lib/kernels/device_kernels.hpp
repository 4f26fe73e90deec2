// The kernels of a device other than the CPU. The library for the device implements this interface, and its streams return it
// (Stream::kernels()). The functions of kernels.hpp, which all code calls, forward to this interface.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <typeinfo>

#include "base/element.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// The operands of gemm() and gemm_with_epilogue().
struct Product {
  DType type, out_type;
  Trans trans_a, trans_b;
  std::size_t m, n, k;
  const void* a;
  std::size_t lda;
  const void* b;
  std::size_t ldb;
  void* out;
  std::size_t ldo;
  Write write;
  Epilogue epilogue = {};

  /// The smallest alignment of the operands in bytes. cuBLASLt chooses a kernel by it. No kernel loads more than 16 bytes at
  /// once, so a larger alignment is not reported: the choice must not depend on where a strategy places an operand.
  unsigned alignment() const {
    const auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                      reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(epilogue.operand) | 16;
    return 1u << std::countr_zero(bits);
  }
};

/// An algorithm of the library that runs gemm(): 64 bytes (cublasLtMatmulAlgo_t) that only this version of the library can
/// read.
using GemmAlgorithm = std::array<unsigned char, 64>;

/// The operands of attention_forward() and attention_backward().
struct AttentionForwardCall {
  DType type;
  void* out;
  float* lse;
  const void *q, *k, *v;
  AttentionShape shape;
  DropoutMask mask;
  float* scratch = nullptr;
};
struct AttentionBackwardCall {
  DType type;
  void *dq, *dk, *dv;
  const void *d_out, *out;
  const float* lse;
  const void *q, *k, *v;
  AttentionShape shape;
  float* scratch;
  DropoutMask mask;
};

/// What a device has of cuDNN.
struct Cudnn {
  std::string version;         // such as "9.26.0"
  std::size_t most_head_size;  // for which cuDNN computes attention on this device
};

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;
  /// Runs body(lanes, row) for each row in [0, rows). `type` is the body's C++ type, one of those in rows/bodies.hpp. Throws
  /// UserError if the library was not compiled for this type, for example if the body contains an optimizer's rule from outside
  /// the library.
  virtual void rows(Stream& stream, const std::type_info& type, const void* body, std::size_t rows) const = 0;
  /// Computes a product. If it has an epilogue, takes() must have returned true for it.
  virtual void gemm(Stream& stream, const Product& product) const = 0;
  /// Returns true if gemm() can compute the product with its epilogue.
  virtual bool takes(Stream& stream, const Product& product) const = 0;
  /// Loads cuDNN for attention with cudnn_parts > 0. Throws UserError if it cannot be used.
  virtual Cudnn load_cudnn() const = 0;
  /// See prepare_attention() in kernels.hpp.
  virtual void prepare_attention(DType type, const AttentionShape& shape, bool backward) const = 0;
  virtual void attention_forward(Stream& stream, const AttentionForwardCall& call) const = 0;
  virtual void attention_backward(Stream& stream, const AttentionBackwardCall& call) const = 0;
  /// Describes the library that runs gemm(), for example "cuBLASLt 13.1".
  virtual std::string gemm_description() const = 0;
  /// Times the algorithms that the library suggests for products like this one, and returns the fastest. The stream must be
  /// idle. Overwrites product.out, and the operand of an epilogue that computes sums.
  virtual GemmAlgorithm fastest_algorithm(Stream& stream, const Product& product) const = 0;
  /// From now on, all products like this one use `algorithm`. Throws UserError if the library cannot use it for them in the
  /// stream's workspace.
  virtual void use_algorithm(Stream& stream, const Product& product, const GemmAlgorithm& algorithm) const = 0;
};

}  // namespace fsdp::kernels
