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
/// CPU, the library that multiplies packs blocks of both operands. gemm() itself keeps memory: packed blocks for tiles, or fp32
/// copies of all three matrices if the CPU does not multiply this type natively.
std::size_t gemm_workspace_bytes(DType type, std::span<const ProductShape> products, const DeviceTraits& device);

}  // namespace fsdp::kernels
