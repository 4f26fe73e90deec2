// AttentionShape::visible_keys() for both attention kernels on GPUs. The kernels are compiled twice: for sequences in which all
// queries see the first key, and for other sequences: those with several documents, or longer than a window.
#pragma once

#include <cstddef>

#include "device/cuda/runtime.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::kernels {

struct OneDocument {
  static __device__ __forceinline__ Keys seen_by(const AttentionShape& s, std::size_t, std::size_t t) {
    return {0, s.past + t + 1};
  }
  static __device__ __forceinline__ std::size_t end_of_seers(const AttentionShape& s, std::size_t, std::size_t) { return s.T; }
  static __device__ __forceinline__ bool some_begin_behind(const AttentionShape&, std::size_t, unsigned, unsigned, unsigned) {
    return false;
  }
};

struct SeveralDocuments {
  /// Tokens after the end of the sequence count as its last one.
  static __device__ __forceinline__ Keys seen_by(const AttentionShape& s, std::size_t b, std::size_t t) {
    return s.seen_by(b, t < s.T ? t : s.T - 1);
  }

  /// Returns the first token after t that does not see token t. That token and all later ones see neither t nor any token
  /// before t.
  static __device__ __forceinline__ std::size_t end_of_seers(const AttentionShape& s, std::size_t b, std::size_t t) {
    std::size_t low = t + 1, end = s.T;
    while (low < end) {
      const std::size_t middle = low + (end - low) / 2;
      if (seen_by(s, b, middle).begin > t)
        end = middle;
      else
        low = middle + 1;
    }
    return end;
  }

  /// Returns true if one of the `queries` queries from `query` on sees only keys after `key`.
  static __device__ __forceinline__ bool some_begin_behind(const AttentionShape& s, std::size_t b, unsigned query,
                                                           unsigned queries, unsigned key) {
    return seen_by(s, b, query + queries - 1).begin > key;
  }
};

/// Calls f.operator()<Documents>() for sequences of this shape.
template <class F>
cudaError_t with_documents(const AttentionShape& s, F f) {
  return s.all_see_the_first() ? f.template operator()<OneDocument>() : f.template operator()<SeveralDocuments>();
}

}  // namespace fsdp::kernels
