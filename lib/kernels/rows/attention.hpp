// Causal attention on the CPU, one sequence and head (or key head) per "row". Queries are processed in blocks of 48, and their
// scores are stored transposed, [key][query]. So the softmax needs no sums across the lanes of a register, and only the queries
// of a block are transposed, not the keys. No product includes keys that no query of the block sees. In a sequence of several
// documents, each document is processed like a sequence of its own. The backward pass recomputes the probabilities from the
// forward pass's lse (Dao, "FlashAttention-2", 2023, section 3.1). It uses delta_i = sum(dO_i O_i), which is right even if
// probabilities are dropped.
#pragma once

#include <algorithm>

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/offsets.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/small_gemm.hpp"

namespace fsdp::kernels {

/// The sizes of arrays for sequences of T tokens and heads of D. Rows of D floats are padded to whole registers, and arrays to
/// whole tiles.
struct AttentionSizes {
  static constexpr std::size_t block = 48;     // queries per block: a multiple of 16 and of the rows of every tile
  static constexpr std::size_t overhang = 12;  // the largest number of rows by which an array's last tile exceeds the array
  FSDP_INLINE static constexpr std::size_t aligned(std::size_t n) { return (n + 15) / 16 * 16; }

  std::size_t T, D;
  FSDP_INLINE std::size_t width() const { return aligned(D); }
  FSDP_INLINE std::size_t rows() const { return (T + overhang) * width(); }  // the size of an array of T rows
  FSDP_INLINE std::size_t block_rows() const {
    return (block + overhang) * width();
  }  // the size of an array of one row per query of a block
  FSDP_INLINE std::size_t block_columns() const { return aligned((D + overhang) * block); }  // the transpose of that array
  FSDP_INLINE std::size_t scores() const { return (T + overhang) * block; }
  FSDP_INLINE std::size_t panel() const { return (block + overhang) * block; }
};

/// The offsets of a thread's arrays in its scratch, for the forward and for the backward pass.
struct ForwardScratch {
  AttentionSizes size;
  Offsets at{sizeof(float)};
  std::size_t keys = at.take(size.rows()), values = at.take(size.rows());
  std::size_t queries = at.take(size.block_rows()), transposed = at.take(size.block_columns());
  std::size_t probabilities = at.take(size.scores());
  std::size_t end = at.end();
};
struct BackwardScratch {
  AttentionSizes size;
  Offsets at{sizeof(float)};
  std::size_t keys = at.take(size.rows()), values = at.take(size.rows());
  std::size_t d_keys = at.take(size.rows()), d_values = at.take(size.rows());
  std::size_t queries = at.take(size.block_rows()), d_outs = at.take(size.block_rows());
  std::size_t d_queries = at.take(size.block_rows()), queries_transposed = at.take(size.block_columns());
  std::size_t d_outs_transposed = at.take(size.block_columns());
  std::size_t probabilities = at.take(size.panel()), d_scores = at.take(size.panel());
  std::size_t end = at.end();
};

/// T and D rounded up to whole tiles of 32, for the bodies of rows/attention_tiles.hpp, and the offsets of their arrays.
struct TileSizes {
  static constexpr std::size_t side = 32;
  std::size_t R, W;
  FSDP_INLINE TileSizes(std::size_t T, std::size_t D) : R((T + side - 1) / side * side), W((D + side - 1) / side * side) {}
};
struct TileForwardScratch : TileSizes {
  Offsets at{sizeof(bf16)};
  std::size_t keys = at.take_values(R * W), values = at.take_values(R * W), queries = at.take_values(side * W);
  std::size_t probabilities = at.take_values(side * R), scores = at.take(side * R), sums = at.take(side * W);
  std::size_t factors = at.end(), end = factors + R + 8;
};
struct TileBackwardScratch : TileSizes {
  Offsets at{sizeof(bf16)};
  std::size_t keys = at.take_values(R * W), keys_transposed = at.take_values(R * W), values_transposed = at.take_values(R * W);
  std::size_t queries = at.take_values(side * W), queries_transposed = at.take_values(side * W);
  std::size_t d_outs = at.take_values(side * W), d_outs_transposed = at.take_values(side * W);
  std::size_t slopes = at.take_values(side * R), rounded = at.take_values(side * R);
  std::size_t scores = at.take(side * R), d_scores = at.take(side * R), d_queries = at.take(side * W);
  std::size_t d_keys = at.take(R * W), d_values = at.take(R * W);
  std::size_t factors = at.end(), end = factors + R + 8;
};

/// The number of floats of scratch per thread. The first function is for the forward pass over T keys, the second for both
/// passes. The scratch is enough for every instruction set, so that memory plans do not depend on the machine.
inline std::size_t attention_forward_scratch_of_thread(std::size_t T, std::size_t D) {
  return std::max(ForwardScratch{{T, D}}.end, TileForwardScratch{{T, D}}.end);
}
inline std::size_t attention_scratch_of_thread(std::size_t T, std::size_t D) {
  return std::max({attention_forward_scratch_of_thread(T, D), BackwardScratch{{T, D}}.end, TileBackwardScratch{{T, D}}.end});
}

#if !defined(__CUDACC__)

namespace attention_parts {

constexpr std::size_t block = AttentionSizes::block;

/// Prefetches row r + 12 of rows that are pages apart, which the hardware prefetcher does not predict; `write` is 1 if the
/// caller will write the row. At most 64 of the D elements are prefetched.
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

/// Copies `rows` rows of D elements into rows of `width` floats, padded with zeros. Rows up to row `foreseen` are prefetched,
/// because the caller will read these rows later.
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

#if __has_builtin(__builtin_shufflevector)
#define FSDP_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else  // g++ 11
#define FSDP_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (int __attribute__((vector_size(16)))){i, j, k, l})
#endif

/// to[d][query] = scale * from[query][d] for 48 queries, in squares of four by four. Rows of `from` have `width` floats.
FSDP_INLINE void transpose(float* to, const float* from, std::size_t width, std::size_t D, float scale) {
  typedef float Four __attribute__((vector_size(16)));
  const auto load = [](const float* p) FSDP_LANE {
    Four x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  };
  const auto store = [scale](float* p, Four x) FSDP_LANE {
    x = x * scale;
    __builtin_memcpy(p, &x, sizeof(x));
  };
  for (std::size_t d = 0; d < D; d += 4)
    for (std::size_t j = 0; j < block; j += 4) {
      const float* in = from + j * width + d;
      const Four a = load(in), b = load(in + width), c = load(in + 2 * width), e = load(in + 3 * width);
      const Four ab = FSDP_SHUFFLE(a, b, 0, 4, 1, 5), AB = FSDP_SHUFFLE(a, b, 2, 6, 3, 7), ce = FSDP_SHUFFLE(c, e, 0, 4, 1, 5),
                 CE = FSDP_SHUFFLE(c, e, 2, 6, 3, 7);
      float* out = to + d * block + j;
      store(out, FSDP_SHUFFLE(ab, ce, 0, 1, 4, 5));
      store(out + block, FSDP_SHUFFLE(ab, ce, 2, 3, 6, 7));
      store(out + 2 * block, FSDP_SHUFFLE(AB, CE, 0, 1, 4, 5));
      store(out + 3 * block, FSDP_SHUFFLE(AB, CE, 2, 3, 6, 7));
    }
}
#undef FSDP_SHUFFLE

/// Packs the rows of a block of queries, or of another matrix with a row per query. Rows of zeros are appended until there are
/// `columns` rows. Also stores the transpose in `transposed`.
template <class E>
FSDP_INLINE void pack_block(float* to, float* transposed, std::size_t width, const E* from, std::size_t stride,
                            std::size_t rows, std::size_t columns, std::size_t foreseen, std::size_t D, float scale) {
  pack(to, width, from, stride, rows, foreseen, D);
  for (std::size_t i = rows * width; i < columns * width; ++i) to[i] = 0;
  transpose(transposed, to, width, D, scale);
}

/// The keys that each query of a block sees, as indices from the first key of the block's run.
struct Seen {
  std::int32_t begin[block], end[block];

  /// For the block of queries from t on. `run_end` is the end of the run of these queries (see each_run()). Queries from
  /// `run_end` on count as the run's last query.
  FSDP_INLINE Seen(const AttentionShape& s, std::size_t b, std::size_t t, std::size_t run_end, std::size_t first_key) {
    for (std::size_t j = 0; j < block; ++j) {
      const Keys keys = s.seen_by(b, t + j < run_end ? t + j : run_end - 1);
      begin[j] = static_cast<std::int32_t>(keys.begin - first_key);
      end[j] = static_cast<std::int32_t>(keys.end - first_key);
    }
  }
  FSDP_INLINE std::size_t first() const { return static_cast<std::size_t>(begin[0]); }
  FSDP_INLINE std::size_t last() const { return static_cast<std::size_t>(end[block - 1]); }
  FSDP_INLINE bool by(std::size_t j, std::int32_t key) const { return begin[j] <= key && key < end[j]; }
  /// Returns true if each of the 16 queries from j on sees the key.
  FSDP_INLINE bool by_all(std::size_t j, std::int32_t key) const { return begin[j + 15] <= key && key < end[j]; }
};

/// out[key][query] = left[key, :] . right[:, query] for keys [first, end) and `queries` queries. For keys from the first
/// query's own key on, groups of 16 queries that see none of the keys are skipped.
template <int level>
FSDP_INLINE void scores(float* out, const float* left, std::size_t width, const float* right, std::size_t D, std::size_t first,
                        std::size_t end, const Seen& seen, std::size_t queries) {
  const std::size_t own = static_cast<std::size_t>(seen.end[0]) - 1, below = end < own ? end : own;
  if (below > first)
    small_gemm<level>(below - first, queries, D, {left + first * width, width, 1}, right, block, out, block, false);
  std::size_t skip = 0;
  for (std::size_t key = first > own ? first : own; key < end; key += 16) {
    while (skip + 16 < queries && static_cast<std::size_t>(seen.end[skip + 15]) <= key) skip += 16;
    const std::size_t count = end - key < 16 ? end - key : 16;
    small_gemm<level>(count, queries - skip, D, {left + key * width, width, 1}, right + skip, block,
                      out + (key - first) * block + skip, block, false);
  }
}

/// For the 16 queries from j on and keys [from, end), replaces scores by exp(score - top), or by 0 if the query does not see
/// the key. scores[key][query] has rows of `block` floats. Sets `top` to each query's largest score, and `total` to each
/// query's sum of exponentials.
FSDP_INLINE void softmax(float* scores, const Seen& seen, std::size_t j, std::size_t from, std::size_t end, float* top,
                         float* total) {
  const auto first = static_cast<std::int32_t>(from), begin = seen.begin[j], last = seen.end[j + 15];
  float largest[16], sum[16];
  for (std::size_t i = 0; i < 16; ++i) {
    largest[i] = -__builtin_huge_valf();
    sum[i] = 0;
  }
  for (std::int32_t key = begin; key < last; ++key) {
    const float* p = scores + (key - first) * std::int32_t{block};
    if (seen.by_all(j, key)) {
#pragma omp simd
      for (std::size_t i = 0; i < 16; ++i) largest[i] = p[i] > largest[i] ? p[i] : largest[i];
    } else {
#pragma omp simd
      for (std::size_t i = 0; i < 16; ++i) largest[i] = seen.by(j + i, key) && p[i] > largest[i] ? p[i] : largest[i];
    }
  }
  for (std::int32_t key = begin; key < last; ++key) {
    float* p = scores + (key - first) * std::int32_t{block};
    if (seen.by_all(j, key)) {
#pragma omp simd
      for (std::size_t i = 0; i < 16; ++i) {
        const float e = exp(p[i] - largest[i]);
        p[i] = e;
        sum[i] += e;
      }
    } else {
#pragma omp simd
      for (std::size_t i = 0; i < 16; ++i) {
        const float e = seen.by(j + i, key) ? exp(p[i] - largest[i]) : 0.0f;
        p[i] = e;
        sum[i] += e;
      }
    }
  }
  const auto zero = [=](std::int32_t key, std::int32_t past) FSDP_LANE {
    for (; key < past; ++key)
      for (std::size_t i = 0; i < 16; ++i) scores[(key - first) * std::int32_t{block} + static_cast<std::int32_t>(i)] = 0;
  };
  zero(first, begin), zero(last, static_cast<std::int32_t>(end));
  for (std::size_t i = 0; i < 16; ++i) {
    top[i] = largest[i];
    total[i] = sum[i];
  }
}

/// For the 16 queries from j on and keys [from, end): replaces scores by probabilities, and gradients of the probabilities by
/// gradients of the scores. Both arrays begin at key `from`.
FSDP_INLINE void softmax_backward(float* scores, float* gradients, const Seen& seen, std::size_t j, std::size_t from,
                                  std::size_t end, const float* lse, const float* delta, float scale) {
  float shift[16], mean[16];
  for (std::size_t i = 0; i < 16; ++i) {
    shift[i] = lse[i];
    mean[i] = delta[i];
  }
  for (std::size_t at = from; at < end; ++at) {
    float *p = scores + (at - from) * block, *d = gradients + (at - from) * block;
    const auto key = static_cast<std::int32_t>(at);
    if (seen.by_all(j, key)) {
#pragma omp simd
      for (std::size_t i = 0; i < 16; ++i) {
        const float e = exp(p[i] - shift[i]);
        p[i] = e;
        d[i] = e * (d[i] - mean[i]) * scale;
      }
    } else {
#pragma omp simd
      for (std::size_t i = 0; i < 16; ++i) {
        const float e = exp(p[i] - shift[i]), slope = e * (d[i] - mean[i]) * scale;
        p[i] = seen.by(j + i, key) ? e : 0.0f;
        d[i] = seen.by(j + i, key) ? slope : 0.0f;
      }
    }
  }
}

/// Computes dropout's factors[key][16] for 16 queries from `query` on and up to 48 keys [from, from + count). Returns a pointer
/// to the first in `memory`, which has space for 8 more keys, because factors are computed for eight keys at a time.
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

/// Calls each(first, n) for each run [first, first + n) of queries of sequence b, in order. Within a run each query sees at
/// least one key that the query before it sees. So two runs share no key, and a document is one run.
template <class Each>
FSDP_INLINE void each_run(const AttentionShape& s, std::size_t b, Each each) {
  for (std::size_t first = 0, end = 0; first < s.T; first = end) {
    for (end = first + 1; end < s.T && s.seen_by(b, end).begin < s.seen_by(b, end - 1).end;) ++end;
    each(first, end - first);
  }
}

}  // namespace attention_parts

/// The forward pass. Row (b, h) of B * H processes one sequence and query head. `scratch` has attention_scratch_of_thread()
/// floats for this thread.
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
    each_run(s, b, [=, this](std::size_t first, std::size_t n) FSDP_LANE { run(lanes, b, h, first, n, scratch); });
  }

 private:
  /// Processes a run of T queries; `begin` is the index of the first one in the sequence.
  template <int level>
  FSDP_INLINE void run(CpuLanes<level> lanes, std::size_t b, std::size_t h, std::size_t begin, std::size_t T,
                       float* scratch) const {
    using namespace attention_parts;
    const AttentionShape s = shape;
    const Keys run_keys = {s.seen_by(b, begin).begin, s.seen_by(b, begin + T - 1).end};
    const std::size_t D = s.D, all = run_keys.end - run_keys.begin, token = b * s.T + begin;
    const AttentionSizes size{all, D};
    const std::size_t width = size.width(),
                      kv_offset = (b * (s.past + s.T) + run_keys.begin) * s.kv_stride + h / (s.H / s.K) * D;
    const ForwardScratch at{size};
    float* keys = scratch + at.keys;
    float* values = scratch + at.values;
    float* queries = scratch + at.queries;
    float* transposed = scratch + at.transposed;
    float* probabilities = scratch + at.probabilities;
    pack(keys, width, k + kv_offset, s.kv_stride, all, all, D);
    pack(values, width, v + kv_offset, s.kv_stride, all, all, D);

    for (std::size_t first = 0; first < T; first += block) {
      const std::size_t rows = T - first < block ? T - first : block, columns = AttentionSizes::aligned(rows);
      const Seen seen(s, b, begin + first, begin + T, run_keys.begin);
      const std::size_t from = seen.first(), end = seen.last();
      pack_block(queries, transposed, width, q + (token + first) * s.q_stride + h * D, s.q_stride, rows, columns, T - first, D,
                 1.0f / square_root(s.squared_divisor()));
      scores<level>(probabilities, keys, width, transposed, D, from, end, seen, columns);

      float top[block], total[block], factors[(block + 8) * 16];
      for (std::size_t j = 0; j < columns; j += 16) {
        softmax(probabilities + j, seen, j, from, end, top + j, total + j);
        if (mask.dropped)
          for (std::size_t key = from; key < end; key += block) {
            const std::size_t count = end - key < block ? end - key : block;
            multiply(probabilities + (key - from) * block + j,
                     dropout_factors(lanes, factors, mask, b, h, s.past + begin + first + j, run_keys.begin + key, count),
                     count);
          }
      }
      small_gemm<level>(rows, D, end - from, {probabilities, 1, block}, values + from * width, width, queries, width, false);
      for (std::size_t j = 0; j < rows; ++j) {
        E* to = out + ((token + first + j) * s.H + h) * D;
        foresee<1>(to - j * s.H * D, s.H * D, j, T - first, D);
        copy_row(to, queries + j * width, D, 1.0f / total[j]);
        lse[(b * s.H + h) * s.T + begin + first + j] = top[j] + log(total[j]);
      }
    }
  }
};

/// The backward pass. Row (b, kv) of B * K processes all query heads of a key head in order, so that dk and dv have one writer
/// and one order of sums.
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
    each_run(s, b, [=, this](std::size_t first, std::size_t n) FSDP_LANE { run(lanes, b, kv, first, n, scratch); });
  }

 private:
  template <int level>
  FSDP_INLINE void run(CpuLanes<level> lanes, std::size_t b, std::size_t kv, std::size_t begin, std::size_t T,
                       float* scratch) const {
    using namespace attention_parts;
    const AttentionShape s = shape;
    const std::size_t D = s.D, group = s.H / s.K, token = b * s.T + begin;
    const AttentionSizes size{T, D};
    const std::size_t width = size.width(), kv_offset = token * s.kv_stride + kv * D;
    const float scale = 1.0f / square_root(s.squared_divisor());
    const BackwardScratch at{size};
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
        const std::size_t rows = T - first < block ? T - first : block, columns = AttentionSizes::aligned(rows);
        const Seen seen(s, b, begin + first, begin + T, begin);
        // Keys are divided into the same blocks as queries: a product writes whole tiles of rows, and no tile may reach into
        // keys that this block of queries does not compute.
        const std::size_t first_keys = seen.first() / block * block, end = seen.last();
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
        for (std::size_t from = first_keys; from < end; from += block) {
          const std::size_t count = end - from < block ? end - from : block;
          scores<level>(probabilities, keys, width, queries_transposed, D, from, from + count, seen, columns);
          scores<level>(d_scores, values, width, d_outs_transposed, D, from, from + count, seen, columns);
          for (std::size_t j = 0; j < columns; j += 16) {
            const float* const kept =
                mask.dropped ? dropout_factors(lanes, factors, mask, b, h, begin + first + j, begin + from, count) : nullptr;
            if (kept) multiply(d_scores + j, kept, count);
            softmax_backward(probabilities + j, d_scores + j, seen, j, from, from + count, shift + j, delta + j, scale);
            if (kept) multiply(probabilities + j, kept, count);
          }
          small_gemm<level>(count, D, rows, {probabilities, block, 1}, d_outs, width, d_values + from * width, width, true);
          small_gemm<level>(count, D, rows, {d_scores, block, 1}, queries, width, d_keys + from * width, width, true);
          small_gemm<level>(rows, D, count, {d_scores, 1, block}, keys + from * width, width, d_queries, width,
                            from > first_keys);
        }
        unpack(dq + q_offset, s.q_stride, d_queries, width, rows, T - first, D);
      }
    unpack(dk + kv_offset, s.kv_stride, d_keys, width, T, T, D);
    unpack(dv + kv_offset, s.kv_stride, d_values, width, T, T, D);
  }
};

#endif

}  // namespace fsdp::kernels
