// Causal attention in bf16 on AMX's tiles, by the algorithm of rows/attention.hpp with blocks of 32 queries. In products,
// probabilities and gradients of scores are rounded to bf16; the softmax and all sums are in fp32. The gradients of keys and
// values are summed as transposed matrices, dk^T = q^T ds, so that probabilities need no transposition.
#pragma once

#include "kernels/rows/attention.hpp"
#include "kernels/rows/tiles.hpp"

namespace fsdp::kernels {

namespace tile_parts {

using namespace tiles;

FSDP_INLINE bf16* halves_at(float* scratch, std::size_t offset) { return reinterpret_cast<bf16*>(scratch + offset); }

/// Like pack(), for any number of lanes (rows of a left operand, columns of a right operand). The panels are stored one after
/// another. `lane_stride` is the number of elements from one lane to the next.
template <Operand operand, Trans trans>
FSDP_INLINE void pack_all(bf16* to, const bf16* from, std::size_t stride, std::size_t lane_stride, std::size_t lanes,
                          std::size_t depth) {
  for (std::size_t lane = 0; lane < lanes; lane += side, to += aligned(depth) * side)
    pack<operand, trans>(to, from + lane * lane_stride, stride, lanes - lane < side ? lanes - lane : side, depth);
}

/// out[32, columns] = left[32, 32 * steps] right[32 * steps, columns]. A panel of `right` is stored with `right_steps` steps,
/// of which the first `steps` are used; columns is a multiple of 32.
FSDP_INLINE void multiply_row(std::size_t steps, const bf16* left, const bf16* right, std::size_t right_steps, float* out,
                              std::size_t stride, std::size_t columns) {
  for (std::size_t column = 0; column < columns; column += side, right += right_steps * step)
    multiply(steps, left, right, out + column, stride, Write::overwrite);
}

/// Sets the scores of keys in [0, end) that a query does not see to -infinity, so that they get no weight.
FSDP_INLINE void hide_unseen(float* scores, std::size_t stride, std::size_t end, const attention_parts::Seen& seen) {
  for (std::size_t j = 0; j < side; ++j) {
    float* const of_query = scores + j * stride;
    for (std::size_t key = 0; key < static_cast<std::size_t>(seen.begin[j]); ++key) of_query[key] = -__builtin_huge_valf();
    for (std::size_t key = static_cast<std::size_t>(seen.end[j]); key < end; ++key) of_query[key] = -__builtin_huge_valf();
  }
}

/// The largest of n floats; n is a multiple of 32.
FSDP_INLINE float largest(const float* x, std::size_t n) {
  __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  for (std::size_t i = side; i < n; i += side) {
    a = _mm512_max_ps(a, _mm512_loadu_ps(x + i));
    b = _mm512_max_ps(b, _mm512_loadu_ps(x + i + 16));
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(a, b));
}
FSDP_INLINE float sum(const float* x, std::size_t n) {
  __m512 a = _mm512_setzero_ps(), b = a;
  for (std::size_t i = 0; i < n; i += side) {
    a = _mm512_add_ps(a, _mm512_loadu_ps(x + i));
    b = _mm512_add_ps(b, _mm512_loadu_ps(x + i + 16));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(a, b));
}
FSDP_INLINE float dot(const bf16* x, const bf16* y, std::size_t n) {
  __m512 total = _mm512_setzero_ps();
  for (std::size_t i = 0; i < n; i += side)
    total = _mm512_dpbf16_ps(total, (__m512bh)_mm512_maskz_loadu_epi16(first(n - i), x + i),
                             (__m512bh)_mm512_maskz_loadu_epi16(first(n - i), y + i));
  return _mm512_reduce_add_ps(total);
}

/// Computes dropout's factors for one query and keys [from, from + keys), with `keys` a multiple of 32. Returns a pointer to
/// the first in `memory`, which has space for keys + 8.
template <class Lanes>
FSDP_INLINE const float* dropout_factors(Lanes lanes, float* memory, DropoutMask mask, std::size_t b, std::size_t h,
                                         std::size_t query, std::size_t from, std::size_t keys) {
  const std::size_t first = from / 8, before = from % 8;
  lanes.each((before + keys + 7) / 8, [=](std::size_t group) FSDP_LANE {
    const DropoutFactors eight(mask, first + group, query, h, b);
    FSDP_UNROLL
    for (std::size_t k = 0; k < 8; ++k) memory[group * 8 + k] = eight[k];
  });
  return memory + before;
}

/// to[lanes, depth] = the transpose of from[depth, lanes], rounded. Rows of `from` are `from_stride` floats apart, and the
/// memory of `from` is padded to whole blocks of 32.
FSDP_INLINE void store_transposed(bf16* to, std::size_t stride, const float* from, std::size_t from_stride, std::size_t lanes,
                                  std::size_t depth) {
  for (std::size_t lane = 0; lane < lanes; lane += 16)
    for (std::size_t d = 0; d < depth; d += side) {
      __m512i left[16], right[16];
      for (std::size_t i = 0; i < 16; ++i) {
        left[i] = _mm512_loadu_si512(from + (d + i) * from_stride + lane);
        right[i] = _mm512_loadu_si512(from + (d + 16 + i) * from_stride + lane);
      }
      transpose(left);
      transpose(right);
      for (std::size_t i = 0; i < 16 && lane + i < lanes; ++i)
        store_rounded(to + (lane + i) * stride + d, _mm512_castsi512_ps(left[i]), _mm512_castsi512_ps(right[i]), depth - d);
    }
}

}  // namespace tile_parts

/// The forward pass. Row (b, h) of B * H processes one sequence and query head.
struct TileAttentionForward {
  AttentionForward<bf16> call;

  template <int level>
  FSDP_INLINE void operator()(CpuLanes<level> lanes, std::size_t row, float* scratch) const {
    const AttentionShape s = call.shape;
    const std::size_t b = row / s.H, h = row % s.H;
    attention_parts::each_run(s, b,
                              [=, this](std::size_t first, std::size_t n) FSDP_LANE { run(lanes, b, h, first, n, scratch); });
  }

 private:
  template <int level>
  FSDP_INLINE void run(CpuLanes<level> lanes, std::size_t b, std::size_t h, std::size_t begin, std::size_t T,
                       float* scratch) const {
    using namespace tile_parts;
    const auto& [out, lse, q, k, v, s, mask] = call;
    const TileForwardScratch at{{T, s.D}};
    const std::size_t D = s.D, R = at.R, W = at.W, token = b * s.T + begin;
    const std::size_t kv_offset = token * s.kv_stride + h / (s.H / s.K) * D;
    const float scale = 1.0f / square_root(s.squared_divisor());
    bf16 *const keys = halves_at(scratch, at.keys), *const values = halves_at(scratch, at.values),
                *const queries = halves_at(scratch, at.queries), *const probabilities = halves_at(scratch, at.probabilities);
    float *const scores = scratch + at.scores, *const sums = scratch + at.sums, *const factors = scratch + at.factors;
    const Registers registers;
    pack_all<Operand::right, Trans::yes>(keys, k + kv_offset, s.kv_stride, s.kv_stride, T, D);
    pack_all<Operand::right, Trans::no>(values, v + kv_offset, s.kv_stride, 1, D, T);

    for (std::size_t first = 0; first < T; first += side) {
      const std::size_t rows = T - first < side ? T - first : side, end = first + side;
      pack<Operand::left, Trans::no>(queries, q + (token + first) * s.q_stride + h * D, s.q_stride, rows, D);
      multiply_row(W / side, queries, keys, W / side, scores, R, end);
      hide_unseen(scores, R, end, attention_parts::Seen(s, b, begin + first, begin + T, begin));
      float shift[side], total[side];
      for (std::size_t j = 0; j < side; ++j) {
        float* const p = scores + j * R;
        const float top = largest(p, end) * scale;
        lanes.each(end, [=](std::size_t i) FSDP_LANE { p[i] = exp(multiply_add(p[i], scale, -top)); });
        shift[j] = top;
        total[j] = sum(p, end);
        if (mask.dropped) {
          const float* const kept = dropout_factors(lanes, factors, mask, b, h, begin + first + j, begin, end);
          lanes.each(end, [=](std::size_t i) FSDP_LANE { p[i] *= kept[i]; });
        }
      }
      lanes.each(side, [&](std::size_t j) FSDP_LANE { shift[j] += log(total[j]); });
      for (std::size_t j = 0; j < rows; ++j) lse[(b * s.H + h) * s.T + begin + first + j] = shift[j];
      round_left(probabilities, scores, R, end);
      multiply_row(end / side, probabilities, values, R / side, sums, W, W);
      for (std::size_t j = 0; j < rows; ++j) {
        const __m512 factor = _mm512_set1_ps(1.0f / total[j]);
        for (std::size_t d = 0; d < D; d += side) {
          const float* x = sums + j * W + d;
          store_rounded(out + ((token + first + j) * s.H + h) * D + d, _mm512_mul_ps(_mm512_loadu_ps(x), factor),
                        _mm512_mul_ps(_mm512_loadu_ps(x + 16), factor), D - d);
        }
      }
    }
  }
};

/// The backward pass. Row (b, kv) of B * K processes all query heads of a key head in order.
struct TileAttentionBackward {
  AttentionBackward<bf16> call;

  template <int level>
  FSDP_INLINE void operator()(CpuLanes<level> lanes, std::size_t row, float* scratch) const {
    const AttentionShape s = call.shape;
    const std::size_t b = row / s.K, kv = row % s.K;
    attention_parts::each_run(s, b,
                              [=, this](std::size_t first, std::size_t n) FSDP_LANE { run(lanes, b, kv, first, n, scratch); });
  }

 private:
  template <int level>
  FSDP_INLINE void run(CpuLanes<level> lanes, std::size_t b, std::size_t kv, std::size_t begin, std::size_t T,
                       float* scratch) const {
    using namespace tile_parts;
    const auto& [dq, dk, dv, d_out, out, lse, q, k, v, s, mask] = call;
    const TileBackwardScratch at{{T, s.D}};
    const std::size_t D = s.D, group = s.H / s.K, R = at.R, W = at.W, token = b * s.T + begin;
    const std::size_t kv_offset = token * s.kv_stride + kv * D;
    const float scale = 1.0f / square_root(s.squared_divisor());
    bf16 *const keys = halves_at(scratch, at.keys), *const keys_transposed = halves_at(scratch, at.keys_transposed),
                *const values_transposed = halves_at(scratch, at.values_transposed),
                *const queries = halves_at(scratch, at.queries),
                *const queries_transposed = halves_at(scratch, at.queries_transposed),
                *const d_outs = halves_at(scratch, at.d_outs),
                *const d_outs_transposed = halves_at(scratch, at.d_outs_transposed),
                *const slopes = halves_at(scratch, at.slopes), *const rounded = halves_at(scratch, at.rounded);
    float *const scores = scratch + at.scores, *const d_scores = scratch + at.d_scores,
                 *const d_queries = scratch + at.d_queries, *const d_keys = scratch + at.d_keys,
                 *const d_values = scratch + at.d_values, *const factors = scratch + at.factors;
    const Registers registers;
    pack_all<Operand::right, Trans::no>(keys, k + kv_offset, s.kv_stride, 1, D, T);
    pack_all<Operand::right, Trans::yes>(keys_transposed, k + kv_offset, s.kv_stride, s.kv_stride, T, D);
    pack_all<Operand::right, Trans::yes>(values_transposed, v + kv_offset, s.kv_stride, s.kv_stride, T, D);
    lanes.each(2 * R * W, [=](std::size_t i) FSDP_LANE { d_keys[i] = 0; });

    for (std::size_t h = kv * group; h < (kv + 1) * group; ++h)
      for (std::size_t first = 0; first < T; first += side) {
        const std::size_t rows = T - first < side ? T - first : side, end = first + side;
        const bf16* const q_rows = q + (token + first) * s.q_stride + h * D;
        const bf16* const d_out_rows = d_out + ((token + first) * s.H + h) * D;
        const bf16* const out_rows = out + ((token + first) * s.H + h) * D;
        pack<Operand::left, Trans::no>(queries, q_rows, s.q_stride, rows, D);
        pack_all<Operand::left, Trans::yes>(queries_transposed, q_rows, s.q_stride, 1, D, rows);
        pack<Operand::left, Trans::no>(d_outs, d_out_rows, s.H * D, rows, D);
        pack_all<Operand::left, Trans::yes>(d_outs_transposed, d_out_rows, s.H * D, 1, D, rows);
        multiply_row(W / side, queries, keys_transposed, W / side, scores, R, end);
        multiply_row(W / side, d_outs, values_transposed, W / side, d_scores, R, end);
        hide_unseen(scores, R, end, attention_parts::Seen(s, b, begin + first, begin + T, begin));
        for (std::size_t j = 0; j < side; ++j) {
          float *const p = scores + j * R, *const d = d_scores + j * R;
          if (j >= rows) {
            lanes.each(end, [=](std::size_t i) FSDP_LANE { p[i] = d[i] = 0; });
            continue;
          }
          const float delta = dot(d_out_rows + j * s.H * D, out_rows + j * s.H * D, D);
          const float shift = lse[(b * s.H + h) * s.T + begin + first + j];
          if (mask.dropped) {
            const float* const kept = dropout_factors(lanes, factors, mask, b, h, begin + first + j, begin, end);
            lanes.each(end, [=](std::size_t i) FSDP_LANE {
              const float e = exp(multiply_add(p[i], scale, -shift));
              p[i] = e * kept[i];
              d[i] = e * (d[i] * kept[i] - delta) * scale;
            });
          } else {
            lanes.each(end, [=](std::size_t i) FSDP_LANE {
              const float e = exp(multiply_add(p[i], scale, -shift));
              p[i] = e;
              d[i] = e * (d[i] - delta) * scale;
            });
          }
        }
        round_left(slopes, d_scores, R, end);
        multiply_row(end / side, slopes, keys, R / side, d_queries, W, W);
        for (std::size_t j = 0; j < rows; ++j)
          for (std::size_t d = 0; d < D; d += side) {
            const float* x = d_queries + j * W + d;
            store_rounded(dq + (token + first + j) * s.q_stride + h * D + d, _mm512_loadu_ps(x), _mm512_loadu_ps(x + 16),
                          D - d);
          }
        round_right(rounded, d_scores, R, end);
        add_products(d_keys, queries_transposed, rounded, R, W, end);
        round_right(rounded, scores, R, end);
        add_products(d_values, d_outs_transposed, rounded, R, W, end);
      }
    store_transposed(dk + kv_offset, s.kv_stride, d_keys, R, T, D);
    store_transposed(dv + kv_offset, s.kv_stride, d_values, R, T, D);
  }

  /// sums[W, keys] += left[W, 32] right[32, keys]; rows of sums are `stride` apart.
  FSDP_INLINE static void add_products(float* sums, const bf16* left, const bf16* right, std::size_t stride, std::size_t W,
                                       std::size_t keys) {
    using namespace tile_parts;
    for (std::size_t d = 0; d < W; d += side)
      for (std::size_t key = 0; key < keys; key += side)
        multiply(1, left + d * side, right + key * side, sums + d * stride + key, stride, Write::add);
  }
};

}  // namespace fsdp::kernels
