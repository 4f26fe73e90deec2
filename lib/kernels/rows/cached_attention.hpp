// Row bodies for attention of single tokens over a key-value cache. Letters as in kernels.hpp.
#pragma once

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r of R: copies the keys and values of row r of kv to their place in the cache, unless a later row has the same place.
template <class E>
struct AppendToCache {
  E* cache;
  const E* kv;
  std::size_t capacity, R, n, stride;  // positions per sequence; rows; elements per row; elements between rows of kv
  const std::int32_t *sequences, *positions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    if (r + capacity < R && sequences[r + capacity] == sequences[r]) return;
    E* const to =
        cache + (static_cast<std::size_t>(sequences[r]) * capacity + static_cast<std::size_t>(positions[r]) % capacity) * n;
    lanes.each(
        n, [](E& kept, E x) FSDP_LANE { kept = x; }, writes(to), kv + r * stride);
  }
};

/// Row i copies the keys and values of token first + i: from the cache of its sequence, or from row i - past of kv.
template <class E>
struct JoinCache {
  E* to;
  const E *cache, *kv;
  std::size_t capacity, first, past, n, stride;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t i) const {
    const E* const from = i < past ? cache + (first + i) % capacity * n : kv + (i - past) * stride;
    lanes.each(
        n, [](E& joined, E x) FSDP_LANE { joined = x; }, writes(to + i * n), from);
  }
};

/// Row (r, h) of R * H processes query head h of token r. The softmax makes three passes over the scores, which are in scratch.
template <class E>
struct CachedAttention {
  E* out;
  const E *q, *cache;
  std::size_t capacity;
  AttentionShape shape;
  const std::int32_t *sequences, *positions;
  float* scratch;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t row) const {
    // The keys that a query sees are always the first ones in the cache: its capacity is the window, and once it is full, the
    // query sees all of it, in another order. 32-bit integers, to save registers on a GPU.
    const auto own = static_cast<std::uint32_t>(positions[row / shape.H]);
    const Keys seen = shape.visible_keys(own, own);
    const auto stride = static_cast<std::uint32_t>(2 * shape.K * shape.D), size = static_cast<std::uint32_t>(shape.D),
               count = static_cast<std::uint32_t>(seen.end - seen.begin);
    float* const scores = scratch + row * capacity;
    {
      const E* const query = q + row / shape.H * shape.q_stride + row % shape.H * shape.D;
      const E* const keys = kept(row);
      const float scale = 1.0f / square_root(shape.squared_divisor());
      lanes.rows(
          count, size, [=](std::size_t t, std::size_t d) FSDP_LANE { return query[d] * keys[t * stride + d]; },
          [=](std::size_t t, float sum) FSDP_LANE { scores[t] = sum * scale; });
    }
    const float top = lanes.max(count, -__builtin_huge_valf(), [=](std::size_t t) FSDP_LANE { return scores[t]; });
    const float total = lanes.sum(count, [=](std::size_t t) FSDP_LANE { return scores[t] = exp(scores[t] - top); });
    const E* const values = kept(row) + shape.K * shape.D;
    E* const to = out + row * shape.D;
    lanes.columns(
        size, count, [=](std::size_t t, std::size_t d) FSDP_LANE { return scores[t] * values[t * stride + d]; },
        [=](std::size_t d, float sum) FSDP_LANE { to[d] = E(sum / total); });
  }

 private:
  /// The cached keys of this row's sequence and head, from position 0 on.
  FSDP_INLINE const E* kept(std::size_t row) const {
    const std::size_t H = shape.H, K = shape.K, D = shape.D;
    return cache + static_cast<std::size_t>(sequences[row / H]) * capacity * (2 * K * D) + row % H / (H / K) * D;
  }
};

}  // namespace fsdp::kernels
