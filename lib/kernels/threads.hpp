// The number of OpenMP threads that the calling thread's kernels use. OpenMP stores this number per calling thread, so that
// each logical rank of a test has its own.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.hpp"
#include "device/traits.hpp"

namespace fsdp::kernels {

void set_threads(int count);
int threads();
/// The traits of this machine's CPU, with threads() threads.
inline DeviceTraits traits_of_cpu() { return cpu_traits(static_cast<std::size_t>(threads())); }

/// The product of a [rows, inner] and an [inner, columns] matrix.
struct ProductShape {
  std::size_t rows, inner, columns;
};
/// The approximate memory that products of this type take outside the memory plan. On a GPU it is a fixed workspace. On this
/// CPU, oneDNN's gemm allocates panels of both operands, 384 long along k, and frees them after the product (measured with
/// version 2.6.3). gemm() itself keeps memory: packed blocks for AMX's tiles, or fp32 copies of all three matrices if the CPU
/// does not multiply this type natively.
std::size_t gemm_workspace_bytes(DType type, std::span<const ProductShape> products, const DeviceTraits& device);

}  // namespace fsdp::kernels
