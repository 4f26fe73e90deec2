// Which tokens of a sequence of documents see which (AttentionShape::positions), for both kernels of attention on GPUs. Only
// for files that nvcc compiles, or g++ for the double.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// The first token that token t of sequence b sees: where its document begins. It never falls as t grows.
__device__ __forceinline__ std::size_t first_seen(const AttentionShape& s, std::size_t b, std::size_t t) {
  return s.positions && t < s.T ? t - static_cast<std::size_t>(s.positions[b * s.T + t]) : 0;
}

/// Tokens from here on do not see token t, nor any before it.
__device__ __forceinline__ std::size_t end_of_seers(const AttentionShape& s, std::size_t b, std::size_t t) {
  std::size_t low = t + 1, end = s.T;
  if (!s.positions) return end;
  while (low < end) {
    const std::size_t middle = low + (end - low) / 2;
    if (first_seen(s, b, middle) > t)
      end = middle;
    else
      low = middle + 1;
  }
  return end;
}

}  // namespace fsdp::kernels
