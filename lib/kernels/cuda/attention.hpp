// Attention on a GPU, with the operands of kernels.hpp. Both functions return when their kernels are queued.
#pragma once

#include <cmath>

#include "device/cuda/runtime.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// The largest head size.
inline constexpr std::size_t most_head_size_on_cuda = 256;

/// The factor by which the products q k^T are multiplied.
inline float scale_of(const AttentionShape& shape) { return 1 / std::sqrt(shape.squared_divisor()); }

/// The largest shared memory, in bytes, of a block of attention on CUDA cores, in the forward pass or in both passes. The
/// kernels on tensor cores need less than all supported GPUs have.
std::size_t attention_shared_bytes(std::size_t D, bool backward);

cudaError_t attention_forward_cuda(cudaStream_t stream, const AttentionForwardCall& call);
cudaError_t attention_backward_cuda(cudaStream_t stream, const AttentionBackwardCall& call);

}  // namespace fsdp::kernels
