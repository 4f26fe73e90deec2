// How many blocks of threads attention's kernels have on a GPU: a function of type and shape, for which no GPU need be there.
#pragma once

#include <cstddef>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// Whether the kernels of tensor_attention.cu take heads of this type and shape. It depends on nothing else, so that a run that
/// is resumed computes with the kernels that it began with. q, k, v, out and their gradients must then begin on multiples of 16
/// bytes. A model's do: they are parts of buffers on multiples of 64, and begin a multiple of 8 numbers behind their rows'
/// beginnings.
constexpr bool tensor_attention_takes(DType type, const AttentionShape& s) {
  return (type == DType::bf16 || type == DType::f16) && s.D % 8 == 0 && s.D <= 128 && s.q_stride % 8 == 0 &&
         s.kv_stride % 8 == 0;
}

/// How many queries a block of the forward pass has, keys one of the gradients of keys and values, and queries one of the
/// gradients of queries.
struct AttentionTiles {
  std::size_t forward, keys, queries;
};
constexpr AttentionTiles tensor_tiles{128, 64, 64}, cuda_core_tiles{32, 32, 32};

/// The blocks of these three kernels.
struct AttentionBlocks {
  std::size_t forward, keys, queries;
};
constexpr AttentionBlocks attention_blocks(DType type, const AttentionShape& s) {
  const AttentionTiles tiles = tensor_attention_takes(type, s) ? tensor_tiles : cuda_core_tiles;
  const auto blocks = [&](std::size_t rows, std::size_t heads) { return (s.T + rows - 1) / rows * heads * s.B; };
  return {blocks(tiles.forward, s.H), blocks(tiles.keys, s.K), blocks(tiles.queries, s.H)};
}

}  // namespace fsdp::kernels
