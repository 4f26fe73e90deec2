// Starts row bodies on CUDA, as run_rows() does on the CPU.
#pragma once

#include <cstddef>

#include "device/cuda/runtime.hpp"

namespace fsdp::kernels {

/// Queues body(lanes, row) for row in [0, rows), one thread block per row. The body's pointers must point to device memory.
/// Instantiated in rows/cuda.cu for the bodies of rows/bodies.hpp.
template <class Body>
cudaError_t run_rows_cuda(cudaStream_t stream, const Body& body, std::size_t rows);

}  // namespace fsdp::kernels
