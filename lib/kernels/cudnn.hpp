// Which attention cuDNN computes, and its workspace. Both are functions of type and shape, so that a memory plan needs no
// cuDNN.
#pragma once

#include <cstddef>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// The oldest supported cuDNN, as cudnnGetVersion() returns it: 9.11.0. The frontend refuses 9.10 because of known errors.
inline constexpr std::size_t least_cudnn_version = 91100;

/// The largest head size for which cuDNN computes both passes on an H100 or H200. On other GPUs it is smaller.
inline constexpr std::size_t most_cudnn_head_size = 256;

/// The largest workspace of a backward pass. If cuDNN needs more for all heads, it computes them in several calls.
inline constexpr std::size_t most_cudnn_workspace = std::size_t{1} << 30;

/// The workspace starts at a multiple of this number of bytes.
inline constexpr std::size_t cudnn_alignment = 256;

/// The largest workspace in bytes of the forward pass.
inline constexpr std::size_t cudnn_forward_workspace = 256;

/// The largest workspace in bytes of cuDNN's deterministic backward pass for shape.H and shape.K heads. It holds gradients of
/// scores in 16 bits, dk and dv of each query head if heads share keys, and a sum in fp32 for each query. The test
/// cudnn.plans compares the formula with cuDNN; cuDNN 9.26 needs all of it on an H200, cuDNN 9.19 256 bytes less.
constexpr std::size_t cudnn_workspace(const AttentionShape& s) {
  return 2 * s.B * s.H * round_up(s.T, 64) * round_up(s.T, 128) + (s.K < s.H ? 4 * s.B * s.H * s.T * s.D : 0) +
         4 * s.B * s.H * s.T + cudnn_forward_workspace;
}

/// Returns `shape` with one of `parts` equal parts of its heads.
constexpr AttentionShape part_of_heads(AttentionShape shape, std::size_t parts) {
  shape.H /= parts, shape.K /= parts;
  return shape;
}

/// Returns the number of calls in which cuDNN computes the backward pass. 0: cuDNN does not compute this attention, because
/// its type is fp32, its heads are no multiple of 8 numbers, a sequence has several documents or earlier tokens, or the
/// workspace for one head of keys is above the limit.
constexpr std::size_t cudnn_parts(DType type, const AttentionShape& s) {
  const bool aligned = s.D % 8 == 0 && s.q_stride % 8 == 0 && s.kv_stride % 8 == 0;
  if (type == DType::f32 || !aligned || s.positions || s.past > 0) return 0;
  for (std::size_t parts = 1; parts <= s.K; ++parts)
    if (s.K % parts == 0 && cudnn_workspace(part_of_heads(s, parts)) <= most_cudnn_workspace) return parts;
  return 0;
}

}  // namespace fsdp::kernels
