// Attention on tensor cores. kernels/cuda/attention.cu uses it for all calls that it supports.
#pragma once

#include "device/cuda/runtime.hpp"
#include "kernels/cuda/attention_blocks.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// Both functions require tensor_attention_takes() (attention_blocks.hpp).
cudaError_t tensor_attention_forward(cudaStream_t stream, const AttentionForwardCall& call);
/// call.scratch holds delta[B,H,T], the sums of d_out * out over D.
cudaError_t tensor_attention_backward(cudaStream_t stream, const AttentionBackwardCall& call);

}  // namespace fsdp::kernels
