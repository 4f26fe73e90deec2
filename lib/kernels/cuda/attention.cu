// Causal attention on CUDA cores, for types and head sizes that tensor_attention.hpp does not support. The forward pass is
// FlashAttention's online softmax over tiles of 32 queries and 32 keys (Dao et al. 2022, Algorithm 1). The backward pass is
// that of FlashAttention-2, which computes the probabilities again from lse and uses delta (Dao 2023, Algorithm 2). One kernel
// computes the gradients of keys and values and another those of queries, so that no two blocks add to the same sum and the
// order of all sums is fixed.
//
// Tiles without a visible key are skipped (kernels.hpp: AttentionShape::visible_keys).
//
// A block has eight warps, and each warp has four rows of the tile. Lane l has element l of a row of scores, and elements l, l
// + 32 and so on of a row of D. All arithmetic is fp32.
#include "base/error.hpp"
#include "device/cuda/launch.hpp"
#include "device/cuda/warp.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/documents.hpp"
#include "kernels/cuda/tensor_attention.hpp"
#include "kernels/math.hpp"
#include "kernels/rows/dropout.hpp"

#include <type_traits>

namespace fsdp::kernels {

namespace {

constexpr unsigned warps = 8, tile = 32, rows_of_warp = tile / warps;
static_assert(tile == warp_size && most_head_size_on_cuda == 8 * warp_size);

__device__ float warp_max(float value) {
  for (unsigned distance = warp_size / 2; distance > 0; distance /= 2) {
    const float other = exchange(value, distance);
    value = other > value ? other : value;
  }
  return value;
}

__device__ float warp_sum(float value) {
  for (unsigned distance = warp_size / 2; distance > 0; distance /= 2) value += exchange(value, distance);
  return value;
}

/// A tile in shared memory. Rows of D numbers are padded by one, so that lanes that read the same column of different rows
/// access different banks.
struct Tile {
  float* data;
  std::size_t stride;
  __device__ float* row(std::size_t r) const { return data + r * stride; }
  __device__ float dot(std::size_t r, const float* other, std::size_t D) const {
    const float* mine = row(r);
    float sum = 0;
    for (std::size_t d = 0; d < D; ++d) sum = multiply_add(mine[d], other[d], sum);
    return sum;
  }
  /// Copies the D numbers at from[(first + r) * step], times `factor`, to row r. Rows with first + r >= end become zero. Called
  /// by the whole block, which must synchronise afterwards.
  template <class E>
  __device__ void load(const E* from, std::size_t step, std::size_t first, std::size_t end, std::size_t D,
                       float factor = 1) const {
    for (std::size_t i = threadIdx.x; i < tile * D; i += blockDim.x) {
      const std::size_t r = i / D, d = i % D;
      row(r)[d] = first + r < end ? static_cast<float>(from[(first + r) * step + d]) * factor : 0.0f;
    }
  }
};

/// The first of the four rows of a tile that belong to this warp.
__device__ std::size_t first_row_of_warp() { return warp_of_block() * rows_of_warp; }

/// The sums of the warp's rows of D numbers; this lane has numbers c * 32 + lane. `chunks` is at least ceil(D / 32).
template <int chunks>
struct RowSums {
  float value[rows_of_warp][chunks] = {};

  /// Adds to row r the sum over j of weights[r][j] * rows[j].
  __device__ void add(const Tile& weights, const Tile& rows, std::size_t D) {
    const std::size_t first = first_row_of_warp();
    for (std::size_t j = 0; j < tile; ++j) {
      float weight[rows_of_warp];
      FSDP_UNROLL
      for (unsigned r = 0; r < rows_of_warp; ++r) weight[r] = weights.row(first + r)[j];
      each(D, [&](int c, std::size_t d) {
        const float x = rows.row(j)[d];
        FSDP_UNROLL
        for (unsigned r = 0; r < rows_of_warp; ++r) value[r][c] = multiply_add(weight[r], x, value[r][c]);
      });
    }
  }
  template <class E>
  __device__ void store(unsigned r, E* to, std::size_t D, float divisor = 1) const {
    each(D, [&](int c, std::size_t d) { to[d] = E(value[r][c] / divisor); });
  }

 private:
  /// Calls f(c, d) for this lane's numbers d of a row.
  template <class F>
  static __device__ void each(std::size_t D, F f) {
    FSDP_UNROLL
    for (int c = 0; c < chunks; ++c)
      if (const std::size_t d = lane_of_warp() + warp_size * static_cast<unsigned>(c); d < D) f(c, d);
  }
};

/// Allocates tiles in shared memory, one after another.
class SharedTiles {
 public:
  __device__ explicit SharedTiles() : next_(reinterpret_cast<float*>(dynamic_shared())) {}
  __device__ Tile take(std::size_t columns) {
    const Tile t{next_, columns + 1};
    next_ += tile * t.stride;
    return t;
  }
  static std::size_t bytes(std::size_t wide, std::size_t D, std::size_t square) {
    return sizeof(float) * tile * (wide * (D + 1) + square * (tile + 1));
  }

 private:
  float* next_;
};

__device__ float dropout_factor(const DropoutMask& mask, std::size_t key, std::size_t query, std::size_t head, std::size_t b) {
  return mask.dropped ? DropoutFactors(mask, key / 8, query, head, b)[key % 8] : 1.0f;
}

/// The tile, head and sequence that a block computes.
struct Place {
  std::size_t first, head, b;
  __device__ Place(std::size_t tiles, std::size_t heads)
      : first(blockIdx.x % tiles * tile), head(blockIdx.x / tiles % heads), b(blockIdx.x / tiles / heads) {}
};

static_assert(cuda_core_tiles.forward == tile && cuda_core_tiles.keys == tile && cuda_core_tiles.queries == tile);

/// The forward pass of a tile of queries: an online softmax, and the mean of the values weighted by the probabilities.
template <class E, int chunks, class Documents>
struct Forward {
  static constexpr unsigned most_threads = warp_size * warps;
  E* out;
  float* lse;
  const E *q, *k, *v;
  AttentionShape s;
  DropoutMask mask;
  float scale;
  std::size_t all;  // the number of keys per sequence

  __device__ void operator()() const {
    const Place at((s.T + tile - 1) / tile, s.H);
    const std::size_t kv_head = at.head / (s.H / s.K), lane = lane_of_warp(), first_row = first_row_of_warp();
    SharedTiles shared;
    const Tile queries = shared.take(s.D), keys = shared.take(s.D), values = shared.take(s.D), p = shared.take(tile);
    queries.load(q + at.b * s.T * s.q_stride + at.head * s.D, s.q_stride, at.first, s.T, s.D, scale);
    float top[rows_of_warp], total[rows_of_warp] = {};
    RowSums<chunks> sums;
    for (float& value : top) value = -__builtin_huge_valf();
    const std::size_t last = at.first + tile < s.T ? at.first + tile - 1 : s.T - 1, end = Documents::seen_by(s, at.b, last).end;
    for (std::size_t key = Documents::seen_by(s, at.b, at.first).begin / tile * tile; key < end; key += tile) {
      __syncthreads();
      keys.load(k + at.b * all * s.kv_stride + kv_head * s.D, s.kv_stride, key, all, s.D);
      values.load(v + at.b * all * s.kv_stride + kv_head * s.D, s.kv_stride, key, all, s.D);
      __syncthreads();
      FSDP_UNROLL
      for (unsigned r = 0; r < rows_of_warp; ++r) {
        const std::size_t row = first_row + r, query = at.first + row, j = key + lane;
        const Keys keys_seen = Documents::seen_by(s, at.b, query);
        const bool seen = j < keys_seen.end && j < all && j >= keys_seen.begin;
        const float score = seen ? keys.dot(lane, queries.row(row), s.D) : -__builtin_huge_valf();
        const float largest = warp_max(score), before = top[r];
        // A query may see none of the first keys of the loop, and only later keys.
        const bool began = std::is_same_v<Documents, OneDocument> ? key > 0 : before > -__builtin_huge_valf();
        if (largest > top[r]) top[r] = largest;
        const float e = seen ? exp(score - top[r]) : 0.0f, shrink = began ? exp(before - top[r]) : 0.0f;
        total[r] = total[r] * shrink + warp_sum(e);
        p.row(row)[lane] = seen ? e * dropout_factor(mask, j, s.past + query, at.head, at.b) : 0.0f;
        for (float& value : sums.value[r]) value *= shrink;
      }
      sync_warp();
      sums.add(p, values, s.D);
    }
    FSDP_UNROLL
    for (unsigned r = 0; r < rows_of_warp; ++r) {
      const std::size_t query = at.first + first_row + r;
      if (query >= s.T) continue;
      sums.store(r, out + ((at.b * s.T + query) * s.H + at.head) * s.D, s.D, total[r]);
      if (lane == 0) lse[(at.b * s.H + at.head) * s.T + query] = top[r] + log(total[r]);
    }
  }
};

/// delta[b,h,t] = the sum of d_out * out over the D elements of a head. A warp computes one sum.
template <class E>
struct Delta {
  static constexpr unsigned most_threads = warp_size * warps;
  float* delta;
  const E *d_out, *out;
  std::size_t B, T, H, D;

  __device__ void operator()() const {
    const std::size_t i = static_cast<std::size_t>(blockIdx.x) * warps + warp_of_block(), lane = lane_of_warp();
    if (i >= B * T * H) return;
    float sum = 0;
    for (std::size_t d = lane; d < D; d += warp_size)
      sum = multiply_add(static_cast<float>(d_out[i * D + d]), static_cast<float>(out[i * D + d]), sum);
    sum = warp_sum(sum);
    if (lane == 0) delta[(i / (T * H) * H + i % H) * T + i / H % T] = sum;
  }
};

/// The results for a pair of a query and a key: the probability after dropout, and the gradient of the score.
struct Pair {
  float weight, slope;
};

/// The gradients of a tile of keys and values. They are sums over the queries from the tile's first token on, in all query
/// heads that share the keys.
template <class E, int chunks, class Documents>
struct KeyBackward {
  static constexpr unsigned most_threads = warp_size * warps;
  E *dk, *dv;
  const E* d_out;
  const float *lse, *delta;
  const E *q, *k, *v;
  AttentionShape s;
  DropoutMask mask;
  float scale;

  __device__ void operator()() const {
    const Place at((s.T + tile - 1) / tile, s.K);
    const std::size_t lane = lane_of_warp(), first_row = first_row_of_warp(), group = s.H / s.K;
    SharedTiles shared;
    const Tile queries = shared.take(s.D), d_outs = shared.take(s.D), keys = shared.take(s.D), values = shared.take(s.D),
               weights = shared.take(tile), slopes = shared.take(tile);
    keys.load(k + at.b * s.T * s.kv_stride + at.head * s.D, s.kv_stride, at.first, s.T, s.D);
    values.load(v + at.b * s.T * s.kv_stride + at.head * s.D, s.kv_stride, at.first, s.T, s.D);
    RowSums<chunks> d_keys, d_values;
    const std::size_t end = Documents::end_of_seers(s, at.b, at.first + tile - 1);
    for (std::size_t head = at.head * group; head < (at.head + 1) * group; ++head)
      for (std::size_t query = at.first; query < end; query += tile) {
        __syncthreads();
        queries.load(q + at.b * s.T * s.q_stride + head * s.D, s.q_stride, query, s.T, s.D);
        d_outs.load(d_out + (at.b * s.T * s.H + head) * s.D, s.H * s.D, query, s.T, s.D);
        __syncthreads();
        const std::size_t i = query + lane, of_query = (at.b * s.H + head) * s.T + i;
        for (unsigned r = 0; r < rows_of_warp; ++r) {
          const std::size_t row = first_row + r, key = at.first + row;
          Pair pair{0, 0};
          if (const Keys seen = Documents::seen_by(s, at.b, i); key < seen.end && i < s.T && key >= seen.begin) {
            const float factor = dropout_factor(mask, key, i, head, at.b);
            const float probability = exp(queries.dot(lane, keys.row(row), s.D) * scale - lse[of_query]);
            pair.weight = probability * factor;
            pair.slope = probability * (d_outs.dot(lane, values.row(row), s.D) * factor - delta[of_query]) * scale;
          }
          weights.row(row)[lane] = pair.weight;
          slopes.row(row)[lane] = pair.slope;
        }
        sync_warp();
        d_values.add(weights, d_outs, s.D);
        d_keys.add(slopes, queries, s.D);
      }
    FSDP_UNROLL
    for (unsigned r = 0; r < rows_of_warp; ++r) {
      const std::size_t key = at.first + first_row + r, to = (at.b * s.T + key) * s.kv_stride + at.head * s.D;
      if (key >= s.T) continue;
      d_keys.store(r, dk + to, s.D);
      d_values.store(r, dv + to, s.D);
    }
  }
};

/// The gradients of a tile of queries. They are sums over the keys up to the tile's last token.
template <class E, int chunks, class Documents>
struct QueryBackward {
  static constexpr unsigned most_threads = warp_size * warps;
  E* dq;
  const E* d_out;
  const float *lse, *delta;
  const E *q, *k, *v;
  AttentionShape s;
  DropoutMask mask;
  float scale;

  __device__ void operator()() const {
    const Place at((s.T + tile - 1) / tile, s.H);
    const std::size_t kv_head = at.head / (s.H / s.K), lane = lane_of_warp(), first_row = first_row_of_warp();
    SharedTiles shared;
    const Tile queries = shared.take(s.D), d_outs = shared.take(s.D), keys = shared.take(s.D), values = shared.take(s.D),
               slopes = shared.take(tile);
    queries.load(q + at.b * s.T * s.q_stride + at.head * s.D, s.q_stride, at.first, s.T, s.D);
    d_outs.load(d_out + (at.b * s.T * s.H + at.head) * s.D, s.H * s.D, at.first, s.T, s.D);
    RowSums<chunks> d_queries;
    const std::size_t last = at.first + tile < s.T ? at.first + tile - 1 : s.T - 1, end = Documents::seen_by(s, at.b, last).end;
    for (std::size_t key = Documents::seen_by(s, at.b, at.first).begin / tile * tile; key < end; key += tile) {
      __syncthreads();
      keys.load(k + at.b * s.T * s.kv_stride + kv_head * s.D, s.kv_stride, key, s.T, s.D);
      values.load(v + at.b * s.T * s.kv_stride + kv_head * s.D, s.kv_stride, key, s.T, s.D);
      __syncthreads();
      for (unsigned r = 0; r < rows_of_warp; ++r) {
        const std::size_t row = first_row + r, query = at.first + row, j = key + lane;
        float slope = 0;
        if (const Keys seen = Documents::seen_by(s, at.b, query); j < seen.end && query < s.T && j >= seen.begin) {
          const std::size_t of_query = (at.b * s.H + at.head) * s.T + query;
          const float factor = dropout_factor(mask, j, query, at.head, at.b);
          const float probability = exp(keys.dot(lane, queries.row(row), s.D) * scale - lse[of_query]);
          slope = probability * (values.dot(lane, d_outs.row(row), s.D) * factor - delta[of_query]) * scale;
        }
        slopes.row(row)[lane] = slope;
      }
      sync_warp();
      d_queries.add(slopes, keys, s.D);
    }
    FSDP_UNROLL
    for (unsigned r = 0; r < rows_of_warp; ++r) {
      const std::size_t query = at.first + first_row + r;
      if (query >= s.T) continue;
      d_queries.store(r, dq + (at.b * s.T + query) * s.q_stride + at.head * s.D, s.D);
    }
  }
};

/// Calls f<chunks, Documents>() with the template arguments for this shape.
template <class F>
cudaError_t with_chunks(const AttentionShape& s, F f) {
  expect(s.D <= most_head_size_on_cuda, "the head size must be within the limit of the GPU kernels");
  return with_documents(s, [&]<class Documents>() {
    if (s.D <= 2 * warp_size) return f.template operator()<2, Documents>();
    if (s.D <= 4 * warp_size) return f.template operator()<4, Documents>();
    return f.template operator()<8, Documents>();
  });
}

}  // namespace

std::size_t attention_shared_bytes(std::size_t D, bool backward) {
  return backward ? SharedTiles::bytes(4, D, 2) : SharedTiles::bytes(3, D, 1);
}

cudaError_t attention_forward_cuda(cudaStream_t stream, const AttentionForwardCall& call) {
  const AttentionShape& s = call.shape;
  if (s.B * s.T == 0) return cudaSuccess;
  if (tensor_attention_takes(call.type, s)) return tensor_attention_forward(stream, call);
  return with_chunks(s, [&]<int chunks, class Documents>() {
    return with_element(call.type, [&]<class E>() {
      return launch_kernel(stream, static_cast<unsigned>(attention_blocks(call.type, s).forward), warp_size * warps,
                           SharedTiles::bytes(3, s.D, 1),
                           Forward<E, chunks, Documents>{static_cast<E*>(call.out), call.lse, static_cast<const E*>(call.q),
                                                         static_cast<const E*>(call.k), static_cast<const E*>(call.v), s,
                                                         call.mask, scale_of(s), s.past + s.T});
    });
  });
}

cudaError_t attention_backward_cuda(cudaStream_t stream, const AttentionBackwardCall& call) {
  const AttentionShape& s = call.shape;
  if (s.B * s.T == 0) return cudaSuccess;
  return with_chunks(s, [&]<int chunks, class Documents>() {
    return with_element(call.type, [&]<class E>() {
      const E *const d_out = static_cast<const E*>(call.d_out), *const q = static_cast<const E*>(call.q),
                     *const k = static_cast<const E*>(call.k), *const v = static_cast<const E*>(call.v);
      const unsigned threads = warp_size * warps;
      cudaError_t status = launch_kernel(stream, static_cast<unsigned>((s.B * s.T * s.H + warps - 1) / warps), threads, 0,
                                         Delta<E>{call.scratch, d_out, static_cast<const E*>(call.out), s.B, s.T, s.H, s.D});
      if (status != cudaSuccess) return status;
      if (tensor_attention_takes(call.type, s)) return tensor_attention_backward(stream, call);
      const AttentionBlocks blocks = attention_blocks(call.type, s);
      status = launch_kernel(stream, static_cast<unsigned>(blocks.keys), threads, SharedTiles::bytes(4, s.D, 2),
                             KeyBackward<E, chunks, Documents>{static_cast<E*>(call.dk), static_cast<E*>(call.dv), d_out,
                                                               call.lse, call.scratch, q, k, v, s, call.mask, scale_of(s)});
      if (status != cudaSuccess) return status;
      return launch_kernel(stream, static_cast<unsigned>(blocks.queries), threads, SharedTiles::bytes(4, s.D, 1),
                           QueryBackward<E, chunks, Documents>{static_cast<E*>(call.dq), d_out, call.lse, call.scratch, q, k, v,
                                                               s, call.mask, scale_of(s)});
    });
  });
}

}  // namespace fsdp::kernels
