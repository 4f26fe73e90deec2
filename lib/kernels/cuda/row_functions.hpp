// A table from the type of a row body to the function that runs it on a GPU. launch() and update_elements() use it on a GPU's
// stream.
#pragma once

#include <cstddef>
#include <typeindex>
#include <unordered_map>

#include "device/cuda/runtime.hpp"

namespace fsdp::kernels {

/// Queues `body` for `rows` rows. The type of `body` must be the key of this function in the table.
using CudaRowFunction = cudaError_t (*)(cudaStream_t stream, const void* body, std::size_t rows);

/// The functions of all bodies in rows/bodies.hpp.
std::unordered_map<std::type_index, CudaRowFunction> cuda_row_functions();

}  // namespace fsdp::kernels
