// Row bodies by their types: what a stream of a GPU runs for launch() and update_elements().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <typeindex>
#include <unordered_map>

namespace fsdp::kernels {

/// Queues `body`, which is of the type that the function was found by, for `rows` rows.
using CudaRowFunction = cudaError_t (*)(cudaStream_t stream, const void* body, std::size_t rows);

/// All that this library was compiled with: those of rows/bodies.hpp.
std::unordered_map<std::type_index, CudaRowFunction> cuda_row_functions();

}  // namespace fsdp::kernels
