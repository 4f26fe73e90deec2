// Attention on a GPU: see kernels.hpp. Both queue their kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>

#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// Heads have at most so many numbers.
inline constexpr std::size_t most_head_size_on_cuda = 256;

/// What scores are multiplied with.
inline float scale_of(const AttentionShape& shape) { return 1 / std::sqrt(static_cast<float>(shape.D)); }

cudaError_t attention_forward_cuda(cudaStream_t stream, const AttentionForwardCall& call);
cudaError_t attention_backward_cuda(cudaStream_t stream, const AttentionBackwardCall& call);

}  // namespace fsdp::kernels
