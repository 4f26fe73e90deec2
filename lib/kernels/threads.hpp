// How many OpenMP threads the kernels of the calling thread use. OpenMP keeps the number per calling thread, so that each
// logical rank of a test has its own.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.hpp"
#include "device/traits.hpp"

namespace fsdp::kernels {

void set_threads(int count);
int threads();
/// This machine, with that many threads.
inline DeviceTraits traits_of_cpu() { return cpu_traits(static_cast<std::size_t>(threads())); }

/// A product of [rows, inner] and [inner, columns].
struct ProductShape {
  std::size_t rows, inner, columns;
};
/// About what products of this type take beside the memory plan. On a GPU that is a fixed workspace. On this machine: oneDNN's
/// gemm takes panels of 384 along k of both operands and gives them back (from measurements of version 2.6.3); gemm() keeps
/// blocks for AMX's tiles, or, where the type has no products, all three matrices in fp32.
std::size_t gemm_workspace_bytes(DType type, std::span<const ProductShape> products, const DeviceTraits& device);

}  // namespace fsdp::kernels
