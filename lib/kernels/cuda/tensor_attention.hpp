// Attention on tensor cores, which kernels/cuda/attention.cu chooses where it can.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device_kernels.hpp"

namespace fsdp::kernels {

/// Whether the functions below take heads of this type and shape. It depends on nothing else, so that a run that is resumed
/// computes with the kernels that it began with. q, k, v, out and their gradients must then begin on multiples of 16 bytes. A
/// model's do: they are parts of buffers on multiples of 64, and begin a multiple of 8 numbers behind their rows' beginnings.
constexpr bool tensor_attention_takes(DType type, const AttentionShape& s) {
  return (type == DType::bf16 || type == DType::f16) && s.D % 8 == 0 && s.D <= 128 && s.q_stride % 8 == 0 &&
         s.kv_stride % 8 == 0;
}

cudaError_t tensor_attention_forward(cudaStream_t stream, const AttentionForwardCall& call);
/// call.scratch holds delta[B,H,T], the sums of d_out * out over D.
cudaError_t tensor_attention_backward(cudaStream_t stream, const AttentionBackwardCall& call);

}  // namespace fsdp::kernels
