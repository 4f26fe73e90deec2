// Which tokens of a sequence see which, for both kernels of attention on GPUs: these are compiled once for sequences of one
// document, which need nothing for it, and once for sequences of several (AttentionShape::positions).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

struct OneDocument {
  static __device__ __forceinline__ std::size_t first_seen(const AttentionShape&, std::size_t, std::size_t) { return 0; }
  static __device__ __forceinline__ std::size_t end_of_seers(const AttentionShape& s, std::size_t, std::size_t) { return s.T; }
  static __device__ __forceinline__ bool some_begin_behind(const AttentionShape&, std::size_t, unsigned, unsigned, unsigned) {
    return false;
  }
};

struct SeveralDocuments {
  /// The first token that token t of sequence b sees: where its document begins. It never falls as t grows.
  static __device__ __forceinline__ std::size_t first_seen(const AttentionShape& s, std::size_t b, std::size_t t) {
    return t < s.T ? t - static_cast<std::size_t>(s.positions[b * s.T + t]) : 0;
  }

  /// Tokens from here on do not see token t, nor any before it.
  static __device__ __forceinline__ std::size_t end_of_seers(const AttentionShape& s, std::size_t b, std::size_t t) {
    std::size_t low = t + 1, end = s.T;
    while (low < end) {
      const std::size_t middle = low + (end - low) / 2;
      if (first_seen(s, b, middle) > t)
        end = middle;
      else
        low = middle + 1;
    }
    return end;
  }

  /// Whether one of the `queries` queries from `query` on does not see token `key`, as its document begins behind it.
  static __device__ __forceinline__ bool some_begin_behind(const AttentionShape& s, std::size_t b, unsigned query,
                                                           unsigned queries, unsigned key) {
    return first_seen(s, b, query + queries < s.T ? query + queries - 1 : s.T - 1) > key;
  }
};

/// f.operator()<Documents>() for sequences of this shape.
template <class F>
cudaError_t with_documents(const AttentionShape& s, F f) {
  return s.positions ? f.template operator()<SeveralDocuments>() : f.template operator()<OneDocument>();
}

}  // namespace fsdp::kernels
