// Launches attention over a key-value cache, and the writes to the cache.
#include "base/timer.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void append_to_cache(Stream& stream, E* cache, const CacheShape& shape, const E* kv, std::size_t R, std::size_t n,
                     std::size_t stride, const std::int32_t* sequences, const std::int32_t* positions) {
  launch(stream, AppendToCache<E>{cache, kv, shape.positions, R, n, stride, sequences, positions}, R);
}

template <class E>
void join_cache(Stream& stream, E* to, const E* cache, const CacheShape& shape, std::size_t sequence, std::size_t first,
                std::size_t past, const E* kv, std::size_t count, std::size_t n, std::size_t stride) {
  launch(stream, JoinCache<E>{to, cache + sequence * shape.positions * n, kv, shape.positions, first, past, n, stride},
         past + count);
}

template <class E>
void cached_attention(Stream& stream, E* out, const E* q, const E* cache, const CacheShape& shape, const AttentionShape& rows,
                      const std::int32_t* sequences, const std::int32_t* positions, float* scratch) {
  expect(rows.K > 0 && rows.H % rows.K == 0, "the number of query heads must be a multiple of the number of key heads");
  const AddTime timed(stream.times.attention);
  launch(stream, CachedAttention<E>{out, q, cache, shape.positions, rows, sequences, positions, scratch}, rows.B * rows.H);
}

#define FSDP_INSTANTIATE(E)                                                                                           \
  template void append_to_cache(Stream&, E*, const CacheShape&, const E*, std::size_t, std::size_t, std::size_t,      \
                                const std::int32_t*, const std::int32_t*);                                            \
  template void join_cache(Stream&, E*, const E*, const CacheShape&, std::size_t, std::size_t, std::size_t, const E*, \
                           std::size_t, std::size_t, std::size_t);                                                    \
  template void cached_attention(Stream&, E*, const E*, const E*, const CacheShape&, const AttentionShape&,           \
                                 const std::int32_t*, const std::int32_t*, float*);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
