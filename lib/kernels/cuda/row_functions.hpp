// A table from the types of row bodies to functions, by which a GPU's stream runs launch() and update_elements().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <typeindex>
#include <unordered_map>

namespace fsdp::kernels {

/// Queues `body` for `rows` rows. Its type must be the one under which the function is in the table.
using CudaRowFunction = cudaError_t (*)(cudaStream_t stream, const void* body, std::size_t rows);

/// The functions of all bodies in rows/bodies.hpp.
std::unordered_map<std::type_index, CudaRowFunction> cuda_row_functions();

}  // namespace fsdp::kernels
