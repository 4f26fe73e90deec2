// Causal attention on the CPU, one sequence and head (or key head) per "row". Queries are taken in blocks of 48 and their
// scores are held transposed, [key][query]: the softmax then runs along registers without sums across them, and only the
// block's queries have to be transposed, not the keys. No product touches keys after the block's last query. A sequence of
// several documents is taken document by document, each as a sequence of its own would be. The backward pass
// makes the probabilities anew from the forward pass's lse (Dao, "FlashAttention-2", 2023, section 3.1), with delta_i =
// sum(dO_i O_i), which dropout of the probabilities does not change.
#pragma once

#include <algorithm>

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/small_gemm.hpp"

namespace fsdp::kernels {

/// Hands out one array after another of a thread's scratch, and counts in floats: the same calls size it and find the way in
/// it.
class ScratchArrays {
 public:
  FSDP_INLINE std::size_t floats(std::size_t n) {
    const std::size_t begin = end_;
    end_ += n;
    return begin;
  }
  /// Of 16-bit numbers; n is even.
  FSDP_INLINE std::size_t halves(std::size_t n) { return floats(n / 2); }
  FSDP_INLINE std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

/// Sizes of arrays for sequences of T tokens and heads of D. Rows of D floats are padded to whole registers, and arrays to
/// whole tiles.
struct AttentionSizes {
  static constexpr std::size_t block = 48;     // queries at a time: divisible by every tile's rows and by 16
  static constexpr std::size_t overhang = 12;  // rows that the last tile of an array may reach beyond it
  FSDP_INLINE static constexpr std::size_t aligned(std::size_t n) { return (n + 15) / 16 * 16; }

  std::size_t T, D;
  FSDP_INLINE std::size_t width() const { return aligned(D); }
  FSDP_INLINE std::size_t rows() const { return (T + overhang) * width(); }  // an array of T rows
  FSDP_INLINE std::size_t block_rows() const {
    return (block + overhang) * width();
  }  // an array of one row per query of a block
  FSDP_INLINE std::size_t block_columns() const { return aligned((D + overhang) * block); }  // the same transposed
  FSDP_INLINE std::size_t scores() const { return (T + overhang) * block; }
  FSDP_INLINE std::size_t panel() const { return (block + overhang) * block; }
};

/// Where a thread's arrays lie in its scratch, in each of the passes, as offsets.
struct ForwardScratch {
  std::size_t keys, values, queries, transposed, probabilities, end;
  FSDP_INLINE explicit ForwardScratch(AttentionSizes size) {
    ScratchArrays take;
    keys = take.floats(size.rows());
    values = take.floats(size.rows());
    queries = take.floats(size.block_rows());
    transposed = take.floats(size.block_columns());
    probabilities = take.floats(size.scores());
    end = take.end();
  }
};
struct BackwardScratch {
  std::size_t keys, values, d_keys, d_values, queries, d_outs, d_queries, queries_transposed, d_outs_transposed, probabilities,
      d_scores, end;
  FSDP_INLINE explicit BackwardScratch(AttentionSizes size) {
    ScratchArrays take;
    keys = take.floats(size.rows());
    values = take.floats(size.rows());
    d_keys = take.floats(size.rows());
    d_values = take.floats(size.rows());
    queries = take.floats(size.block_rows());
    d_outs = take.floats(size.block_rows());
    d_queries = take.floats(size.block_rows());
    queries_transposed = take.floats(size.block_columns());
    d_outs_transposed = take.floats(size.block_columns());
    probabilities = take.floats(size.panel());
    d_scores = take.floats(size.panel());
    end = take.end();
  }
};

/// T and D in whole tiles of 32, for the bodies of rows/attention_tiles.hpp, and the same offsets for these.
struct TileSizes {
  static constexpr std::size_t side = 32;
  std::size_t R, W;
  FSDP_INLINE TileSizes(std::size_t T, std::size_t D) : R((T + side - 1) / side * side), W((D + side - 1) / side * side) {}
};
struct TileForwardScratch : TileSizes {
  std::size_t keys, values, queries, probabilities, scores, sums, factors, end;
  FSDP_INLINE TileForwardScratch(std::size_t T, std::size_t D) : TileSizes(T, D) {
    ScratchArrays take;
    keys = take.halves(R * W);
    values = take.halves(R * W);
    queries = take.halves(side * W);
    probabilities = take.halves(side * R);
    scores = take.floats(side * R);
    sums = take.floats(side * W);
    factors = take.floats(R + 8);
    end = take.end();
  }
};
struct TileBackwardScratch : TileSizes {
  std::size_t keys, keys_transposed, values_transposed, queries, queries_transposed, d_outs, d_outs_transposed, slopes, rounded,
      scores, d_scores, d_queries, d_keys, d_values, factors, end;
  FSDP_INLINE TileBackwardScratch(std::size_t T, std::size_t D) : TileSizes(T, D) {
    ScratchArrays take;
    keys = take.halves(R * W);
    keys_transposed = take.halves(R * W);
    values_transposed = take.halves(R * W);
    queries = take.halves(side * W);
    queries_transposed = take.halves(side * W);
    d_outs = take.halves(side * W);
    d_outs_transposed = take.halves(side * W);
    slopes = take.halves(side * R);
    rounded = take.halves(side * R);
    scores = take.floats(side * R);
    d_scores = take.floats(side * R);
    d_queries = take.floats(side * W);
    d_keys = take.floats(R * W);
    d_values = take.floats(R * W);
    factors = take.floats(R + 8);
    end = take.end();
  }
};

/// Floats of one thread, for every instruction set, so that plans do not depend on it: of the forward pass for T keys, and of
/// both passes.
inline std::size_t attention_forward_scratch_of_thread(std::size_t T, std::size_t D) {
  return std::max(ForwardScratch({T, D}).end, TileForwardScratch(T, D).end);
}
inline std::size_t attention_scratch_of_thread(std::size_t T, std::size_t D) {
  return std::max({attention_forward_scratch_of_thread(T, D), BackwardScratch({T, D}).end, TileBackwardScratch(T, D).end});
}

#if !defined(__CUDACC__)

namespace attention_parts {

constexpr std::size_t block = AttentionSizes::block;

/// Asks for row r + 12 of rows that lie pages apart, where the hardware does not foresee them; `write` 1 to store there. Up to
/// 64 of D.
template <int write, class E>
FSDP_INLINE void foresee(const E* rows, std::size_t stride, std::size_t r, std::size_t count, std::size_t D) {
  if (r + 12 >= count) return;
  const E* row = rows + (r + 12) * stride;
  for (std::size_t d = 0; d < D && d < 64; d += 64 / sizeof(E)) __builtin_prefetch(row + d, write);
}

/// to[d] = from[d] * factor.
template <class To, class From>
FSDP_INLINE void copy_row(To* to, const From* from, std::size_t D, float factor) {
  std::size_t d = 0;
  for (; d + 16 <= D; d += 16) {
#pragma omp simd
    for (std::size_t i = 0; i < 16; ++i) to[d + i] = To(from[d + i] * factor);
  }
  for (; d < D; ++d) to[d] = To(from[d] * factor);
}

/// Copies `rows` rows of D floats into rows of `width`, the rest of which becomes 0. `foreseen` rows will be wanted in the end.
template <class E>
FSDP_INLINE void pack(float* to, std::size_t width, const E* from, std::size_t stride, std::size_t rows, std::size_t foreseen,
                      std::size_t D) {
  for (std::size_t r = 0; r < rows; ++r) {
    foresee<0>(from, stride, r, foreseen, D);
    copy_row(to + r * width, from + r * stride, D, 1.0f);
    for (std::size_t d = D; d < width; ++d) to[r * width + d] = 0;
  }
}

template <class E>
FSDP_INLINE void unpack(E* to, std::size_t stride, const float* from, std::size_t width, std::size_t rows, std::size_t foreseen,
                        std::size_t D) {
  for (std::size_t r = 0; r < rows; ++r) {
    foresee<1>(to, stride, r, foreseen, D);
    copy_row(to + r * stride, from + r * width, D, 1.0f);
  }
}

/// to[d][block] = scale * from[query][width] for 48 queries, in squares of four by four.
FSDP_INLINE void transpose(float* to, const float* from, std::size_t width, std::size_t D, float scale) {
  const __m128 factor = _mm_set1_ps(scale);
  for (std::size_t d = 0; d < D; d += 4)
    for (std::size_t j = 0; j < block; j += 4) {
      const float* in = from + j * width + d;
      __m128 a = _mm_loadu_ps(in), b = _mm_loadu_ps(in + width), c = _mm_loadu_ps(in + 2 * width),
             e = _mm_loadu_ps(in + 3 * width);
      _MM_TRANSPOSE4_PS(a, b, c, e);
      float* out = to + d * block + j;
      _mm_storeu_ps(out, _mm_mul_ps(a, factor));
      _mm_storeu_ps(out + block, _mm_mul_ps(b, factor));
      _mm_storeu_ps(out + 2 * block, _mm_mul_ps(c, factor));
      _mm_storeu_ps(out + 3 * block, _mm_mul_ps(e, factor));
    }
}

/// Packs the queries of a block, or what has a row for each, with zeros up to `columns` rows, and transposes them.
template <class E>
FSDP_INLINE void pack_block(float* to, float* transposed, std::size_t width, const E* from, std::size_t stride,
                            std::size_t rows, std::size_t columns, std::size_t foreseen, std::size_t D, float scale) {
  pack(to, width, from, stride, rows, foreseen, D);
  for (std::size_t i = rows * width; i < columns * width; ++i) to[i] = 0;
  transpose(transposed, to, width, D, scale);
}

/// out[key][query] = left[key, :] . right[:, query] for keys [first, end) and the `queries` queries from `query` on; what lies
/// above the diagonal is left out in steps of 16.
template <int level>
FSDP_INLINE void scores(float* out, const float* left, std::size_t width, const float* right, std::size_t D, std::size_t first,
                        std::size_t end, std::size_t query, std::size_t queries) {
  const std::size_t below = end < query ? end : query;
  if (below > first)
    small_gemm<level>(below - first, queries, D, {left + first * width, width, 1}, right, block, out, block, false);
  for (std::size_t key = first > query ? first : query; key < end; key += 16) {
    const std::size_t skip = (key - query) / 16 * 16, count = end - key < 16 ? end - key : 16;
    small_gemm<level>(count, queries - skip, D, {left + key * width, width, 1}, right + skip, block,
                      out + (key - first) * block + skip, block, false);
  }
}

/// For 16 queries from `query` on, a column of scores[key][query] with rows of `block`: scores -> exp(score - top), 0 after the
/// diagonal, for keys [0, end). top: the largest score, total: the sum.
FSDP_INLINE void softmax(float* scores, std::size_t query, std::size_t end, float* top, float* total) {
  const std::size_t last = query + 16 < end ? query + 16 : end;  // keys [query, last) are on the diagonal
  float largest[16], sum[16];
  for (std::size_t j = 0; j < 16; ++j) {
    largest[j] = -__builtin_huge_valf();
    sum[j] = 0;
  }
  for (std::size_t key = 0; key < query; ++key) {
    const float* p = scores + key * block;
#pragma omp simd
    for (std::size_t j = 0; j < 16; ++j) largest[j] = p[j] > largest[j] ? p[j] : largest[j];
  }
  for (std::size_t key = query; key < last; ++key) {
    const float* p = scores + key * block;
    for (std::size_t j = key - query; j < 16; ++j) largest[j] = p[j] > largest[j] ? p[j] : largest[j];
  }
  for (std::size_t key = 0; key < query; ++key) {
    float* p = scores + key * block;
#pragma omp simd
    for (std::size_t j = 0; j < 16; ++j) {
      const float e = exp(p[j] - largest[j]);
      p[j] = e;
      sum[j] += e;
    }
  }
  for (std::size_t key = query; key < last; ++key) {
    float* p = scores + key * block;
    const std::int32_t begin = static_cast<std::int32_t>(key - query);
#pragma omp simd
    for (std::int32_t j = 0; j < 16; ++j) {
      const float e = j >= begin ? exp(p[j] - largest[j]) : 0.0f;
      p[j] = e;
      sum[j] += e;
    }
  }
  for (std::size_t key = last; key < end; ++key)
    for (std::size_t j = 0; j < 16; ++j) scores[key * block + j] = 0;
  for (std::size_t j = 0; j < 16; ++j) {
    top[j] = largest[j];
    total[j] = sum[j];
  }
}

/// For 16 queries from `query` on and keys [from, end), whose rows begin at scores: scores -> probabilities, and the gradients
/// of the probabilities -> those of the scores.
FSDP_INLINE void softmax_backward(float* scores, float* gradients, std::size_t query, std::size_t from, std::size_t end,
                                  const float* lse, const float* delta, float scale) {
  float shift[16], mean[16];
  for (std::size_t j = 0; j < 16; ++j) {
    shift[j] = lse[j];
    mean[j] = delta[j];
  }
  for (std::size_t key = from; key < end; ++key) {
    float *p = scores + (key - from) * block, *d = gradients + (key - from) * block;
    const std::int32_t begin = key < query ? 0 : key < query + 16 ? static_cast<std::int32_t>(key - query) : 16;
    if (begin == 0) {
#pragma omp simd
      for (std::int32_t j = 0; j < 16; ++j) {
        const float e = exp(p[j] - shift[j]);
        p[j] = e;
        d[j] = e * (d[j] - mean[j]) * scale;
      }
    } else {
#pragma omp simd
      for (std::int32_t j = 0; j < 16; ++j) {
        const float e = exp(p[j] - shift[j]), slope = e * (d[j] - mean[j]) * scale;
        p[j] = j >= begin ? e : 0.0f;
        d[j] = j >= begin ? slope : 0.0f;
      }
    }
  }
}

/// Dropout's factors[key][16] for 16 queries from `query` on and up to 48 keys [from, from + count): where they are in
/// `memory`, which holds as many for 8 keys more, as they are made in eights.
template <class Lanes>
FSDP_INLINE const float* dropout_factors(Lanes lanes, float (&memory)[(block + 8) * 16], DropoutMask mask, std::size_t b,
                                         std::size_t h, std::size_t query, std::size_t from, std::size_t count) {
  const std::size_t before = from % 8;
  float* const factors = memory;
  for (std::size_t key = 0; key < before + count; key += 8)
    lanes.each(16, [=](std::size_t j) FSDP_LANE {
      const DropoutFactors eight(mask, (from + key) / 8, query + j, h, b);
      FSDP_UNROLL
      for (std::size_t k = 0; k < 8; ++k) factors[(key + k) * 16 + j] = eight[k];
    });
  return memory + before * 16;
}

/// x[key][query] *= factors[key][16] for `count` keys.
FSDP_INLINE void multiply(float* x, const float* factors, std::size_t count) {
  for (std::size_t key = 0; key < count; ++key) {
#pragma omp simd
    for (std::size_t j = 0; j < 16; ++j) x[key * block + j] *= factors[key * 16 + j];
  }
}

/// Calls each(begin, n) for the documents of sequence b, [begin, begin + n), in order.
template <class Each>
FSDP_INLINE void each_document(const AttentionShape& s, std::size_t b, Each each) {
  for (std::size_t begin = 0, end = 0; begin < s.T; begin = end) {
    end = s.T;
    if (s.positions)
      for (end = begin + 1; end < s.T && s.positions[b * s.T + end] != 0;) ++end;
    each(begin, end - begin);
  }
}

}  // namespace attention_parts

/// Row (b, h) of B * H. `scratch`: attention_scratch_of_thread() floats for this thread.
template <class E>
struct AttentionForward {
  E* out;
  float* lse;
  const E *q, *k, *v;
  AttentionShape shape;
  DropoutMask mask;

  template <int level>
  FSDP_INLINE void operator()(CpuLanes<level> lanes, std::size_t row, float* scratch) const {
    using namespace attention_parts;
    const AttentionShape s = shape;
    const std::size_t b = row / s.H, h = row % s.H;
    each_document(s, b, [=, this](std::size_t begin, std::size_t n) FSDP_LANE { document(lanes, b, h, begin, n, scratch); });
  }

 private:
  /// `begin`: its first token in the sequence, T: how many it has.
  template <int level>
  FSDP_INLINE void document(CpuLanes<level> lanes, std::size_t b, std::size_t h, std::size_t begin, std::size_t T,
                            float* scratch) const {
    using namespace attention_parts;
    const AttentionShape s = shape;
    const std::size_t D = s.D, all = s.past + T, token = b * s.T + begin;
    const AttentionSizes size{all, D};
    const std::size_t width = size.width(),
                      kv_offset = b * (s.past + s.T) * s.kv_stride + begin * s.kv_stride + h / (s.H / s.K) * D;
    const ForwardScratch at(size);
    float* keys = scratch + at.keys;
    float* values = scratch + at.values;
    float* queries = scratch + at.queries;
    float* transposed = scratch + at.transposed;
    float* probabilities = scratch + at.probabilities;
    pack(keys, width, k + kv_offset, s.kv_stride, all, all, D);
    pack(values, width, v + kv_offset, s.kv_stride, all, all, D);

    for (std::size_t first = 0; first < T; first += block) {
      const std::size_t rows = T - first < block ? T - first : block, query = s.past + first, end = query + rows,
                        columns = AttentionSizes::aligned(rows);
      pack_block(queries, transposed, width, q + (token + first) * s.q_stride + h * D, s.q_stride, rows, columns, T - first, D,
                 1.0f / square_root(static_cast<float>(D)));
      scores<level>(probabilities, keys, width, transposed, D, 0, end, query, columns);

      float top[block], total[block], factors[(block + 8) * 16];
      for (std::size_t j = 0; j < columns; j += 16) {
        softmax(probabilities + j, query + j, end, top + j, total + j);
        if (mask.dropped)
          for (std::size_t from = 0; from < end; from += block) {
            const std::size_t count = end - from < block ? end - from : block;
            multiply(probabilities + from * block + j,
                     dropout_factors(lanes, factors, mask, b, h, begin + query + j, begin + from, count), count);
          }
      }
      small_gemm<level>(rows, D, end, {probabilities, 1, block}, values, width, queries, width, false);
      for (std::size_t j = 0; j < rows; ++j) {
        E* to = out + ((token + first + j) * s.H + h) * D;
        foresee<1>(to - j * s.H * D, s.H * D, j, T - first, D);
        const float* from = queries + j * width;
        copy_row(to, from, D, 1.0f / total[j]);
        lse[(b * s.H + h) * s.T + begin + first + j] = top[j] + log(total[j]);
      }
    }
  }
};

/// Row (b, kv) of B * K: all query heads of a key head, in order, so that dk and dv have one writer and one order of sums.
template <class E>
struct AttentionBackward {
  E *dq, *dk, *dv;
  const E *d_out, *out;
  const float* lse;
  const E *q, *k, *v;
  AttentionShape shape;
  DropoutMask mask;

  template <int level>
  FSDP_INLINE void operator()(CpuLanes<level> lanes, std::size_t row, float* scratch) const {
    using namespace attention_parts;
    const AttentionShape s = shape;
    const std::size_t b = row / s.K, kv = row % s.K;
    each_document(s, b, [=, this](std::size_t begin, std::size_t n) FSDP_LANE { document(lanes, b, kv, begin, n, scratch); });
  }

 private:
  template <int level>
  FSDP_INLINE void document(CpuLanes<level> lanes, std::size_t b, std::size_t kv, std::size_t begin, std::size_t T,
                            float* scratch) const {
    using namespace attention_parts;
    const AttentionShape s = shape;
    const std::size_t D = s.D, group = s.H / s.K, token = b * s.T + begin;
    const AttentionSizes size{T, D};
    const std::size_t width = size.width(), kv_offset = token * s.kv_stride + kv * D;
    const float scale = 1.0f / square_root(static_cast<float>(D));
    const BackwardScratch at(size);
    float* keys = scratch + at.keys;
    float* values = scratch + at.values;
    float* d_keys = scratch + at.d_keys;
    float* d_values = scratch + at.d_values;
    float* queries = scratch + at.queries;
    float* d_outs = scratch + at.d_outs;
    float* d_queries = scratch + at.d_queries;
    float* queries_transposed = scratch + at.queries_transposed;
    float* d_outs_transposed = scratch + at.d_outs_transposed;
    float* probabilities = scratch + at.probabilities;
    float* d_scores = scratch + at.d_scores;
    pack(keys, width, k + kv_offset, s.kv_stride, T, T, D);
    pack(values, width, v + kv_offset, s.kv_stride, T, T, D);
    lanes.each(2 * size.rows(), [=](std::size_t i) FSDP_LANE { d_keys[i] = 0; });

    for (std::size_t h = kv * group; h < (kv + 1) * group; ++h)
      for (std::size_t first = 0; first < T; first += block) {
        const std::size_t rows = T - first < block ? T - first : block, end = first + rows,
                          columns = AttentionSizes::aligned(rows);
        const std::size_t q_offset = (token + first) * s.q_stride + h * D, out_offset = ((token + first) * s.H + h) * D;
        pack_block(queries, queries_transposed, width, q + q_offset, s.q_stride, rows, columns, T - first, D, scale);
        pack_block(d_outs, d_outs_transposed, width, d_out + out_offset, s.H * D, rows, columns, T - first, D, 1.0f);
        float delta[block] = {}, shift[block] = {}, factors[(block + 8) * 16];
        for (std::size_t j = 0; j < rows; ++j) {
          const float* x = d_outs + j * width;
          const E* y = out + out_offset + j * s.H * D;
          foresee<0>(out + out_offset, s.H * D, j, T - first, D);
          delta[j] = lanes.sum(D, [=](std::size_t d) FSDP_LANE { return x[d] * y[d]; });
          shift[j] = lse[(b * s.H + h) * s.T + begin + first + j];
        }
        for (std::size_t from = 0; from < end; from += block) {
          const std::size_t count = end - from < block ? end - from : block;
          scores<level>(probabilities, keys, width, queries_transposed, D, from, from + count, first, columns);
          scores<level>(d_scores, values, width, d_outs_transposed, D, from, from + count, first, columns);
          for (std::size_t j = 0; j < columns; j += 16) {
            const float* const kept =
                mask.dropped ? dropout_factors(lanes, factors, mask, b, h, begin + first + j, begin + from, count) : nullptr;
            if (kept) multiply(d_scores + j, kept, count);
            softmax_backward(probabilities + j, d_scores + j, first + j, from, from + count, shift + j, delta + j, scale);
            if (kept) multiply(probabilities + j, kept, count);
          }
          small_gemm<level>(count, D, rows, {probabilities, block, 1}, d_outs, width, d_values + from * width, width, true);
          small_gemm<level>(count, D, rows, {d_scores, block, 1}, queries, width, d_keys + from * width, width, true);
          small_gemm<level>(rows, D, count, {d_scores, 1, block}, keys + from * width, width, d_queries, width, from > 0);
        }
        unpack(dq + q_offset, s.q_stride, d_queries, width, rows, T - first, D);
      }
    unpack(dk + kv_offset, s.kv_stride, d_keys, width, T, T, D);
    unpack(dv + kv_offset, s.kv_stride, d_values, width, T, T, D);
  }
};

#endif

}  // namespace fsdp::kernels
