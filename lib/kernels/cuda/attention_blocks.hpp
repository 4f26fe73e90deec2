// The number of thread blocks of attention's kernels on a GPU. It is a function of type and shape, and can be computed without
// a GPU.
#pragma once

#include <cstddef>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// Returns true if the kernels of tensor_attention.cu support heads of this type and shape. The choice depends on nothing else,
/// so that a resumed run uses the same kernels as before. q, k, v, out and their gradients must then be aligned to 16 bytes.
/// This holds in a model: these tensors are parts of buffers that are aligned to 64 bytes, at offsets within rows that are
/// multiples of 8 numbers.
constexpr bool tensor_attention_takes(DType type, std::size_t D) {
  return (type == DType::bf16 || type == DType::f16) && D % 8 == 0 && D <= 128;
}
constexpr bool tensor_attention_takes(DType type, const AttentionShape& s) {
  return tensor_attention_takes(type, s.D) && s.q_stride % 8 == 0 && s.kv_stride % 8 == 0;
}

/// The number of rows of a block's tile: `forward` queries in the forward pass, `keys` keys in the kernel for dk and dv,
/// `queries` queries in the kernel for dq.
struct AttentionTiles {
  std::size_t forward, keys, queries;
};
constexpr AttentionTiles tensor_tiles{128, 64, 64}, cuda_core_tiles{32, 32, 32};

/// The numbers of thread blocks of the forward kernel, the kernel for dk and dv, and the kernel for dq.
struct AttentionBlocks {
  std::size_t forward, keys, queries;
};
constexpr AttentionBlocks attention_blocks(DType type, const AttentionShape& s) {
  const AttentionTiles tiles = tensor_attention_takes(type, s) ? tensor_tiles : cuda_core_tiles;
  const auto blocks = [&](std::size_t rows, std::size_t heads) { return (s.T + rows - 1) / rows * heads * s.B; };
  return {blocks(tiles.forward, s.H), blocks(tiles.keys, s.K), blocks(tiles.queries, s.H)};
}

}  // namespace fsdp::kernels
