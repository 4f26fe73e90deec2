// Causal attention over rows of queries, keys and values, with rotary positions. The blocks of a transformer and the layers of
// users' programs compute it by this code, so that their results have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace fsdp {

/// A row of qkv has the queries of all heads, then the keys, then the values.
struct CausalAttention {
  kernels::AttentionShape shape;  // its strides are the length of a row of qkv
  const float* table = nullptr;   // of rotary positions: the first of T rows; null: nothing is rotated
  std::size_t rotated = 0;        // how many numbers of a head are rotated
  std::size_t table_stride = 0;

  /// Rotates queries and keys by their positions. One call rotates both, because they are adjacent in a row.
  template <class E>
  void rotate(Stream& stream, E* qkv, bool inverse) const {
    if (table)
      kernels::rope(stream, qkv, shape.B, shape.T, shape.H + shape.K, shape.D, rotated, shape.q_stride, table, table_stride,
                    inverse, shape.positions);
  }
  /// Computes out[R,HD] and lse from rotated rows.
  template <class E>
  void forward(Stream& stream, const E* qkv, E* out, float* lse, float* scratch, const kernels::DropoutMask& mask = {}) const {
    kernels::attention_forward(stream, out, lse, qkv, qkv + keys(), qkv + values(), shape, scratch, mask);
  }
  /// Computes d_qkv, the gradient of rows that are not rotated yet. The other arguments are those of forward().
  template <class E>
  void backward(Stream& stream, E* d_qkv, const E* d_out, const E* qkv, const E* out, const float* lse, float* scratch,
                const kernels::DropoutMask& mask = {}) const {
    kernels::attention_backward(stream, d_qkv, d_qkv + keys(), d_qkv + values(), d_out, out, lse, qkv, qkv + keys(),
                                qkv + values(), shape, scratch, mask);
    rotate(stream, d_qkv, true);
  }

 private:
  std::size_t keys() const { return shape.H * shape.D; }  // the first column of keys, and that of values
  std::size_t values() const { return (shape.H + shape.K) * shape.D; }
};

}  // namespace fsdp
