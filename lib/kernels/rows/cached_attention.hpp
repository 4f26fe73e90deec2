// Row bodies of attention of single tokens over a key-value cache. Letters as in kernels.hpp.
#pragma once

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Row r of R: what it has to be kept goes to its place in the cache.
template <class E>
struct AppendToCache {
  E* cache;
  const E* kv;
  std::size_t capacity, n, stride;  // positions of a sequence; elements that are kept, and from one row to the next
  const std::int32_t *sequences, *positions;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    E* const to = cache + (static_cast<std::size_t>(sequences[r]) * capacity + static_cast<std::size_t>(positions[r])) * n;
    lanes.each(
        n, [](E& kept, E x) FSDP_LANE { kept = x; }, writes(to), kv + r * stride);
  }
};

/// Row (r, h) of R * H. Softmax in three walks over the scores, which lie in scratch.
template <class E>
struct CachedAttention {
  E* out;
  const E *q, *cache;
  std::size_t q_stride, capacity, H, K, D;
  const std::int32_t *sequences, *positions;
  float* scratch;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t row) const {
    const std::size_t r = row / H, h = row % H, stride = 2 * K * D, size = D;
    const std::size_t count = static_cast<std::size_t>(positions[r]) + 1;
    const E* const query = q + r * q_stride + h * D;
    const E* const keys = cache + static_cast<std::size_t>(sequences[r]) * capacity * stride + h / (H / K) * D;
    const E* const values = keys + K * D;
    float* const scores = scratch + row * capacity;
    E* const to = out + row * D;
    const float scale = 1.0f / square_root(static_cast<float>(D));
    lanes.rows(
        count, size, [=](std::size_t t, std::size_t d) FSDP_LANE { return query[d] * keys[t * stride + d]; },
        [=](std::size_t t, float sum) FSDP_LANE { scores[t] = sum * scale; });
    const float top = lanes.max(count, -__builtin_huge_valf(), [=](std::size_t t) FSDP_LANE { return scores[t]; });
    lanes.each(count, [=](std::size_t t) FSDP_LANE { scores[t] = exp(scores[t] - top); });
    lanes.sync();
    const float factor = 1.0f / lanes.sum(count, [=](std::size_t t) FSDP_LANE { return scores[t]; });
    lanes.columns(
        size, count, [=](std::size_t t, std::size_t d) FSDP_LANE { return scores[t] * values[t * stride + d]; },
        [=](std::size_t d, float sum) FSDP_LANE { to[d] = E(sum * factor); });
  }
};

}  // namespace fsdp::kernels
