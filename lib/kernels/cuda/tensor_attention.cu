// Causal attention on tensor cores, for 16-bit numbers: FlashAttention-2 (Dao 2023), Algorithm 1 forward and Algorithm 2
// backward. As in attention.cu, one kernel computes the gradients of keys and values and another those of queries, so that no
// two blocks add to the same sum and the order of all sums is fixed. The cost is that two of the five backward products are
// computed twice.
//
// A block has four warps. A warp owns strips of 16 rows. The rows are queries, except in the kernel for the gradients of keys
// and values: there they are keys, and the scores are computed transposed. A warp's scores are in its registers as sums of mma.
// Rounded to 16 bits they are the left operand of the next product, so that they never go through shared memory. The block's
// own rows are in shared memory. The rows of the other side (keys and values for a block of queries, queries for a block of
// keys) are copied there in steps of 32 or 64 rows. There are two buffers for steps: asynchronous copies fill one buffer while
// the other is used. A warp reads its own rows from shared memory once, and keeps them in registers, if there are enough.
//
// Dropout is a template parameter. Without it, and for one document, steps in which every query sees every key have their own
// code, without masks.
//
// Expected performance on compute capability 8.0, where it was never measured: a multiprocessor runs one mma in two cycles, and
// in this time shared memory delivers 256 bytes, that is, one right operand. The forward pass has two strips per warp, which
// share each right operand (130 to 190 bytes per mma). In the backward pass two strips would need too many registers (260 to
// 290 bytes, so at best 89 % to 100 % of the peak; 290 to 340 bytes with dropout). Compute capability 9.0 has similar limits;
// its faster instructions (wgmma) are not used. A block takes 30 to 80 KiB of shared memory (heads of 32: 30, 64: 54, 80: 66,
// 96: 78, 128: 68, and up to 1 more for the gradients of keys) and a thread at most 255 registers, so that at least two blocks
// fit on a multiprocessor. Rows in shared memory are padded by 16 bytes, so that ldmatrix has no bank conflicts. Of a head's
// tiles, those with the longest sums start first.
#include "base/error.hpp"
#include "device/cuda/launch.hpp"
#include "device/cuda/warp.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/documents.hpp"
#include "kernels/cuda/tensor_attention.hpp"
#include "kernels/cuda/tensor_core.hpp"
#include "kernels/rows/dropout.hpp"

#include <bit>
#include <type_traits>

namespace fsdp::kernels {

namespace {

constexpr unsigned warps = 4, threads = warp_size * warps, strip = 16;
constexpr float log2_of_e = 1.44269504f;

/// The number of rows of the other side (keys for queries, queries for keys) that a block processes per step. W is the padded
/// head size.
constexpr unsigned step_of(unsigned W) { return W <= 96 ? 64 : 32; }

// The position of this lane's numbers in fragments of mma: see tensor_core.hpp. Row g + 8 * half and column 2t + i are in
// part[2 * half + i].
__device__ unsigned row_of_lane() { return lane_of_warp() / 4; }
__device__ unsigned column_of_lane() { return lane_of_warp() % 4 * 2; }

/// Rows of W numbers in shared memory. The stride is an odd number of 16-byte units, so that 16-byte pieces of eight successive
/// rows, which ldmatrix reads together, are in different banks.
template <class E, unsigned W>
struct SharedRows {
  static_assert(W % 16 == 0);
  static constexpr unsigned stride = W + 8;
  E* data;

  __device__ SharedRows after(unsigned rows) const { return {data + rows * stride}; }

  /// Starts copying from[(first + r) * step] to row r, for `count` rows. Rows with first + r >= end and columns from D on
  /// become zero. The whole block calls this.
  template <unsigned count>
  __device__ void begin_copy(const E* from, std::size_t step, unsigned first, unsigned end, unsigned D) const {
    constexpr unsigned wide = std::bit_floor(W);  // W is a power of two, or the sum of two
    begin_copy_of_columns<count, wide>(0, from, step, first, end, D);
    if constexpr (W > wide) begin_copy_of_columns<count, W - wide>(wide, from, step, first, end, D);
  }

  /// Loads the 16 x 16 numbers at (row, column) as a left operand.
  __device__ LeftFragment left(unsigned row, unsigned column) const {
    const FourParts p = ldmatrix(down_first(row, column));
    return {{p.part[0], p.part[1], p.part[2], p.part[3]}};
  }
  /// Loads 16 x 16 numbers as two adjacent right operands. right() takes the 16 rows as the depth, right_transposed() the 16
  /// columns.
  struct Pair {
    RightFragment of[2];
  };
  __device__ Pair right(unsigned row, unsigned column) const { return pair(ldmatrix_transposed(down_first(row, column))); }
  __device__ Pair right_transposed(unsigned row, unsigned column) const { return pair(ldmatrix(across_first(row, column))); }

 private:
  // These functions return this lane's address for ldmatrix of 16 x 16 numbers, as four 8 x 8 matrices. mma requires each of
  // its operands in adjacent registers. The order of the matrices provides that, so that the compiler need not move them.
  /// The lower left matrix comes before the upper right one.
  __device__ const E* down_first(unsigned row, unsigned column) const {
    return data + (row + lane_of_warp() % 16) * stride + column + lane_of_warp() / 16 * 8;
  }
  /// The upper right matrix comes before the lower left one.
  __device__ const E* across_first(unsigned row, unsigned column) const {
    return data + (row + lane_of_warp() / 16 * 8 + lane_of_warp() % 8) * stride + column + lane_of_warp() / 8 % 2 * 8;
  }
  static __device__ Pair pair(const FourParts& p) { return {{{{p.part[0], p.part[1]}}, {{p.part[2], p.part[3]}}}}; }

  /// begin_copy() for the `width` columns from `column` on, where width is a power of two. A thread copies the same 8 columns
  /// of several rows.
  template <unsigned count, unsigned width>
  __device__ void begin_copy_of_columns(unsigned column, const E* from, std::size_t step, unsigned first, unsigned end,
                                        unsigned D) const {
    constexpr unsigned pieces = width / 8, rows = threads / pieces;
    static_assert(threads % pieces == 0 && count % rows == 0);
    const unsigned r = threadIdx.x / pieces;
    column += threadIdx.x % pieces * 8;
    from += std::size_t{first + r} * step + column;
    FSDP_UNROLL
    for (unsigned i = 0; i < count; i += rows)
      copy_async<16>(data + (r + i) * stride + column, from + i * step, first + r + i < end && column < D);
  }
};

/// The sums of a strip: 16 rows and 8 * n columns.
template <unsigned n>
struct Strip {
  SumFragment of[n];
};

/// A warp's 16 * strips rows as left operands. If they are `kept`, load() reads them from shared memory into registers;
/// otherwise left() reads them. Kernels keep as many rows as they have registers for.
template <class E, unsigned W, unsigned strips, bool kept>
struct OwnRows {
  SharedRows<E, W> rows;
  LeftFragment of[kept ? strips * W / 16 : 1] = {};

  __device__ __forceinline__ void load() {
    if constexpr (kept) {
      FSDP_UNROLL
      for (unsigned i = 0; i < strips * W / 16; ++i) of[i] = read(i / (W / 16), i % (W / 16) * 16);
    }
  }
  __device__ __forceinline__ LeftFragment left(unsigned s, unsigned d) const {
    if constexpr (kept)
      return of[s * W / 16 + d / 16];
    else
      return read(s, d);
  }

 private:
  __device__ LeftFragment read(unsigned s, unsigned d) const { return rows.left(strip * s, d); }
};

/// sums[s] += the product of strip s of `left` and the transpose of the first 8 * n rows of `right`.
template <class E, unsigned W, unsigned n, unsigned strips, bool kept>
__device__ __forceinline__ void add_scores(Strip<n> (&sums)[strips], const OwnRows<E, W, strips, kept>& left,
                                           SharedRows<E, W> right) {
  FSDP_UNROLL
  for (unsigned d = 0; d < W; d += 16) {
    LeftFragment own[strips];
    FSDP_UNROLL
    for (unsigned s = 0; s < strips; ++s) own[s] = left.left(s, d);
    FSDP_UNROLL
    for (unsigned j = 0; j < n; j += 2) {
      const auto pair = right.right_transposed(8 * j, d);
      FSDP_UNROLL
      for (unsigned s = 0; s < strips; ++s) {
        mma<E>(sums[s].of[j], own[s], pair.of[0]);
        mma<E>(sums[s].of[j + 1], own[s], pair.of[1]);
      }
    }
  }
}

/// sums[s] += the product of weights[s], rounded to E, and the first 8 * n rows of `rows`.
template <class E, unsigned W, unsigned n, unsigned strips>
__device__ __forceinline__ void add_weighted(Strip<W / 8> (&sums)[strips], const Strip<n> (&weights)[strips],
                                             SharedRows<E, W> rows) {
  FSDP_UNROLL
  for (unsigned j = 0; j < n; j += 2) {
    LeftFragment own[strips];
    FSDP_UNROLL
    for (unsigned s = 0; s < strips; ++s) {
      const float *const a = weights[s].of[j].part, *const b = weights[s].of[j + 1].part;
      own[s] = {{pack<E>(a[0], a[1]), pack<E>(a[2], a[3]), pack<E>(b[0], b[1]), pack<E>(b[2], b[3])}};
    }
    FSDP_UNROLL
    for (unsigned d = 0; d < W; d += 16) {
      const auto pair = rows.right(8 * j, d);
      FSDP_UNROLL
      for (unsigned s = 0; s < strips; ++s) {
        mma<E>(sums[s].of[d / 8], own[s], pair.of[0]);
        mma<E>(sums[s].of[d / 8 + 1], own[s], pair.of[1]);
      }
    }
  }
}

/// Stores rows [0, rows) of a strip, with D numbers each. The upper eight rows are multiplied by `upper` and the lower eight by
/// `lower`.
template <class E, unsigned n>
__device__ __forceinline__ void store(E* to, std::size_t stride, unsigned rows, unsigned D, const Strip<n>& sums, float upper,
                                      float lower) {
  FSDP_UNROLL
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = row_of_lane() + 8 * half;
    if (row >= rows) continue;
    const float factor = half == 0 ? upper : lower;
    FSDP_UNROLL
    for (unsigned j = 0; j < n; ++j)
      if (8 * j < D)
        *reinterpret_cast<std::uint32_t*>(to + row * stride + 8 * j + column_of_lane()) =
            pack<E>(sums.of[j].part[2 * half] * factor, sums.of[j].part[2 * half + 1] * factor);
  }
}

// The parts of a row are in four lanes; these functions combine their values.
__device__ float max_of_row(float value) {
  for (unsigned distance = 1; distance < 4; distance *= 2) value = fmaxf(value, exchange(value, distance));
  return value;
}
__device__ float sum_of_row(float value) {
  for (unsigned distance = 1; distance < 4; distance *= 2) value += exchange(value, distance);
  return value;
}

// --- Dropout. A Philox counter has four words for eight keys, and a lane needs only one of them: so four lanes share four
// counters, and each lane computes one. ---

/// Exchanges words among four lanes that are `distance` apart: lane i has computed the words of counter i, and receives word i
/// of each counter.
template <unsigned distance>
__device__ __forceinline__ void exchange_words(std::uint32_t (&words)[4]) {
  const unsigned i = lane_of_warp() / distance % 4;
  FSDP_UNROLL
  for (unsigned bit = 1; bit < 4; bit *= 2) {
    const bool upper = i & bit;
    FSDP_UNROLL
    for (unsigned low = 0; low < 4; ++low) {
      if (low & bit) continue;
      const unsigned high = low | bit;
      const std::uint32_t other = exchange(upper ? words[low] : words[high], bit * distance);
      words[low] = upper ? other : words[low];
      words[high] = upper ? words[high] : other;
    }
  }
}

__device__ __forceinline__ void make_words(std::uint32_t (&words)[4], const DropoutMask& mask, unsigned key, unsigned query,
                                           unsigned head, unsigned b) {
  const DropoutFactors factors(mask, key / 8, query, head, b);
  FSDP_UNROLL
  for (unsigned i = 0; i < 4; ++i) words[i] = factors.words[i];
}

__device__ __forceinline__ float factor_of(const DropoutMask& mask, std::uint32_t word, unsigned which) {
  const auto bits = static_cast<std::int32_t>(which == 0 ? word & 0xffffu : word >> 16);
  return bits >= mask.dropped ? mask.scale : 0.0f;
}

/// Computes the factors of the 32 keys from `key` on (columns) and the 16 queries from `query` on (rows).
__device__ __forceinline__ void row_factors(SumFragment (&factors)[4], const DropoutMask& mask, unsigned key, unsigned query,
                                            unsigned head, unsigned b) {
  FSDP_UNROLL
  for (unsigned half = 0; half < 2; ++half) {
    std::uint32_t words[4];
    make_words(words, mask, key + 8 * (lane_of_warp() % 4), query + row_of_lane() + 8 * half, head, b);
    exchange_words<1>(words);
    FSDP_UNROLL
    for (unsigned j = 0; j < 4; ++j)
      for (unsigned i = 0; i < 2; ++i) factors[j].part[2 * half + i] = factor_of(mask, words[j], i);
  }
}

/// Computes the factors of the 16 keys from `key` on (rows) and the 8 queries from `query` on (columns).
__device__ __forceinline__ void column_factors(SumFragment& factors, const DropoutMask& mask, unsigned key, unsigned query,
                                               unsigned head, unsigned b) {
  const unsigned i = lane_of_warp() / 8;  // four lanes that are 8 apart have the same columns; lane i needs word i
  std::uint32_t words[4];
  make_words(words, mask, key + i / 2 * 8, query + column_of_lane() + i % 2, head, b);
  exchange_words<8>(words);
  FSDP_UNROLL
  for (unsigned j = 0; j < 4; ++j) factors.part[j] = factor_of(mask, words[j], row_of_lane() % 2);
}

// --- The kernels. ---

// The range of keys that query t of sequence b sees, as 32-bit numbers.
template <class Documents>
__device__ __forceinline__ unsigned begin_of_keys(const AttentionShape& s, std::size_t b, unsigned t) {
  return static_cast<unsigned>(Documents::seen_by(s, b, t).begin);
}
template <class Documents>
__device__ __forceinline__ unsigned end_of_keys(const AttentionShape& s, std::size_t b, unsigned t) {
  return static_cast<unsigned>(Documents::seen_by(s, b, t).end);
}

/// The tile (of `rows` rows), head and sequence that a block computes.
struct Place {
  unsigned first, head, b;
  __device__ Place(unsigned rows, unsigned T, unsigned heads, bool last_tile_first) {
    const unsigned tiles = (T + rows - 1) / rows, tile = blockIdx.x % tiles;
    first = (last_tile_first ? tiles - 1 - tile : tile) * rows;
    head = blockIdx.x / tiles % heads;
    b = blockIdx.x / tiles / heads;
  }
};

/// Calls use(i, buffer) for i in [0, steps). Meanwhile begin(i + 1, other buffer) starts the copies of the next step. Copies
/// that were started before this call are complete when the first step begins.
template <class Begin, class Use>
__device__ __forceinline__ void each_step(unsigned steps, Begin begin, Use use) {
  begin(0, 0);
  commit_copies();
  for (unsigned i = 0; i < steps; ++i) {
    wait_copies<0>();
    __syncthreads();  // now all lanes see the rows of this step, and no lane still uses the rows of the step before
    if (i + 1 < steps) {
      begin(i + 1, (i + 1) % 2);
      commit_copies();
    }
    use(i, i % 2);
  }
}

/// Calls use(std::true_type{}) or use(std::false_type{}), so that the code for both is compiled separately.
template <class Use>
__host__ __device__ __forceinline__ auto with_flag(bool flag, Use use) {
  return flag ? use(std::true_type{}) : use(std::false_type{});
}

/// Kernels for one document and without dropout compile the steps in which every query sees every key separately. In the other
/// kernels, the code for these steps would make registers spill.
template <class Documents, bool dropout>
inline constexpr bool plain = std::is_same_v<Documents, OneDocument> && !dropout;

/// The block's shared memory: 128 rows of its own, then two buffers. Each buffer has two matrices of `step` rows.
template <class E, unsigned W>
struct Shared {
  static constexpr unsigned own_rows = 128, step = step_of(W);
  static constexpr std::size_t bytes = (own_rows + 4 * step) * SharedRows<E, W>::stride * sizeof(E);
  SharedRows<E, W> own{reinterpret_cast<E*>(dynamic_shared())};
  __device__ SharedRows<E, W> first(unsigned buffer) const { return own.after(own_rows + 2 * buffer * step); }
  __device__ SharedRows<E, W> second(unsigned buffer) const { return first(buffer).after(step); }
};

template <class E, unsigned W, class Documents, bool dropout>
struct TensorForward {
  static constexpr unsigned most_threads = threads;
  static constexpr unsigned step = step_of(W), n = step / 8, strips = 2, rows = warps * strips * strip;
  static_assert(rows == Shared<E, W>::own_rows && rows == tensor_tiles.forward);
  E* out;
  float* lse;
  const E *q, *k, *v;
  AttentionShape s;
  DropoutMask mask;
  float scale;

  __device__ void operator()() const {
    const unsigned T = static_cast<unsigned>(s.T), D = static_cast<unsigned>(s.D), past = static_cast<unsigned>(s.past);
    const Place at(rows, T, static_cast<unsigned>(s.H), true);
    const std::size_t kv = at.b * (s.past + s.T) * s.kv_stride + at.head / (s.H / s.K) * s.D;
    const Shared<E, W> shared;
    shared.own.template begin_copy<rows>(q + at.b * s.T * s.q_stride + at.head * s.D, s.q_stride, at.first, T, D);

    const unsigned row_of_warp = warp_of_block() * strips * strip, query = at.first + row_of_warp;
    const float scale2 = scale * log2_of_e;  // for exponentials with base 2
    OwnRows<E, W, strips, plain<Documents, dropout> && W <= 64> queries{shared.own.after(row_of_warp)};
    Strip<W / 8> sums[strips];
    float top[strips][2], total[strips][2] = {};
    for (auto& of_strip : top) of_strip[0] = of_strip[1] = -__builtin_huge_valf();

    const unsigned end = end_of_keys<Documents>(s, at.b, (at.first + rows < T ? at.first + rows : T) - 1);
    const unsigned begin = begin_of_keys<Documents>(s, at.b, at.first) / step * step;
    each_step((end - begin + step - 1) / step,
              [&](unsigned i, unsigned buffer) {
                shared.first(buffer).template begin_copy<step>(k + kv, s.kv_stride, begin + i * step, past + T, D);
                shared.second(buffer).template begin_copy<step>(v + kv, s.kv_stride, begin + i * step, past + T, D);
              },
              [&](unsigned i, unsigned buffer) {
                const unsigned key = begin + i * step;
                if (i == 0) queries.load();
                if (query >= T || key >= end_of_keys<Documents>(s, at.b, query + strips * strip - 1) ||
                    key + step <= begin_of_keys<Documents>(s, at.b, query))
                  return;
                const bool edge = key + step > end_of_keys<Documents>(s, at.b, query) ||
                                  Documents::some_begin_behind(s, at.b, query, strips * strip, key);
                with_flag(!plain<Documents, dropout> || edge, [&](auto masked) {
                  Strip<n> scores[strips];
                  add_scores(scores, queries, shared.first(buffer));
                  FSDP_UNROLL
                  for (unsigned r = 0; r < strips; ++r)
                    soften<masked>(scores[r], sums[r], top[r], total[r], key, query + strip * r, scale2, at);
                  add_weighted(sums, scores, shared.second(buffer));
                });
              });

    if (query >= T) return;
    FSDP_UNROLL
    for (unsigned r = 0; r < strips; ++r) {
      const unsigned first = query + strip * r;
      if (first >= T) continue;
      const float sum[2] = {sum_of_row(total[r][0]), sum_of_row(total[r][1])};
      store(out + ((at.b * s.T + first) * s.H + at.head) * s.D, s.H * s.D, T - first, D, sums[r], 1 / sum[0], 1 / sum[1]);
      for (unsigned half = 0; half < 2; ++half)
        if (const unsigned row = first + row_of_lane() + 8 * half; column_of_lane() == 0 && row < T)
          lse[(at.b * s.H + at.head) * s.T + row] = multiply_add(top[r][half], scale, log(sum[half]));
    }
  }

  /// Replaces a strip's scores by exp(score - the largest so far), times the dropout factors, and rescales the earlier sums to
  /// the new largest score. `masked`: some queries may not see all of these keys.
  template <bool masked>
  __device__ __forceinline__ void soften(Strip<n>& scores, Strip<W / 8>& sums, float (&top)[2], float (&total)[2], unsigned key,
                                         unsigned query, float scale2, const Place& at) const {
    const bool diagonal = masked && key + step > end_of_keys<Documents>(s, at.b, query),
               cut = masked && Documents::some_begin_behind(s, at.b, query, strip, key);
    FSDP_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = query + row_of_lane() + 8 * half, end = masked ? end_of_keys<Documents>(s, at.b, row) : 0;
      const unsigned begin = cut ? begin_of_keys<Documents>(s, at.b, row) : 0;
      float largest = top[half];
      FSDP_UNROLL
      for (unsigned c = 0; c < 2 * n; ++c) {
        float& score = scores.of[c / 2].part[2 * half + c % 2];
        const unsigned column = key + 8 * (c / 2) + column_of_lane() + c % 2;
        if ((diagonal && column >= end) || (cut && column < begin)) score = -__builtin_huge_valf();
        largest = fmaxf(largest, score);  // ignores NaN, but the sum of exponentials includes it
      }
      largest = max_of_row(largest);
      const float seen = cut && largest == -__builtin_huge_valf() ? 0.0f : largest;  // 0 if the query sees none of these keys
      if (any_lane(largest > top[half])) {  // otherwise all factors are 1, or the sum is NaN
        const float shrink = exp2_approximate((top[half] - seen) * scale2);
        top[half] = largest;
        total[half] *= shrink;
        FSDP_UNROLL
        for (unsigned c = 0; c < W / 4; ++c) sums.of[c / 2].part[2 * half + c % 2] *= shrink;
      }
      const float down = -seen * scale2;
      FSDP_UNROLL
      for (unsigned c = 0; c < 2 * n; ++c) {
        float& score = scores.of[c / 2].part[2 * half + c % 2];
        score = exp2_approximate(multiply_add(score, scale2, down));
        total[half] += score;
      }
    }
    // With dropout, mask.dropped is never 0. But this branch keeps the compiler from mixing the code below with that above, for
    // which there are too few registers.
    if constexpr (dropout)
      if (mask.dropped) {
        FSDP_UNROLL
        for (unsigned j = 0; j < n; j += 4) {
          SumFragment factors[4];
          row_factors(factors, mask, key + 8 * j, static_cast<unsigned>(s.past) + query, at.head, at.b);
          FSDP_UNROLL
          for (unsigned c = 0; c < 16; ++c) scores.of[j + c / 4].part[c % 4] *= factors[c / 4].part[c % 4];
        }
      }
  }
};

/// The gradients of 64 keys and values. They are sums over the queries from the tile's first token on, in all query heads that
/// share the keys.
template <class E, unsigned W, class Documents, bool dropout>
struct TensorKeyBackward {
  static constexpr unsigned most_threads = threads;
  static constexpr unsigned step = step_of(W), n = step / 8, rows = warps * strip;
  static_assert(2 * rows == Shared<E, W>::own_rows && rows == tensor_tiles.keys);
  static constexpr std::size_t shared_bytes = Shared<E, W>::bytes + 4 * step * sizeof(float);
  E *dk, *dv;
  const E* d_out;
  const float *lse, *delta;
  const E *q, *k, *v;
  AttentionShape s;
  DropoutMask mask;
  float scale;

  __device__ void operator()() const {
    const unsigned T = static_cast<unsigned>(s.T), D = static_cast<unsigned>(s.D);
    const Place at(rows, T, static_cast<unsigned>(s.K), false);
    const std::size_t kv = at.b * s.T * s.kv_stride + at.head * s.D;
    const unsigned group = static_cast<unsigned>(s.H / s.K);
    const Shared<E, W> shared;
    float* const statistics =
        reinterpret_cast<float*>(dynamic_shared() + Shared<E, W>::bytes);  // lse and delta of the two buffered steps
    shared.own.template begin_copy<rows>(k + kv, s.kv_stride, at.first, T, D);
    shared.own.after(rows).template begin_copy<rows>(v + kv, s.kv_stride, at.first, T, D);

    const unsigned row_of_warp = warp_of_block() * strip, key = at.first + row_of_warp;
    OwnRows<E, W, 1, plain<Documents, dropout> && W != 96> keys{shared.own.after(row_of_warp)};
    OwnRows<E, W, 1, plain<Documents, dropout> && W <= 80> values{shared.own.after(rows + row_of_warp)};
    const unsigned end = static_cast<unsigned>(Documents::end_of_seers(s, at.b, at.first + rows - 1));
    const float scale2 = scale * log2_of_e;
    Strip<W / 8> d_keys[1], d_values[1];
    // The steps go through the queries of one head after another. Counters avoid divisions.
    struct Queries {
      unsigned head, first;
    } copied{at.head * group, at.first}, used = copied;
    const auto take = [&](Queries& next) {
      const Queries now = next;
      next.first += step;
      if (next.first >= end) next = {next.head + 1, at.first};
      return now;
    };
    each_step(
        group * ((end - at.first + step - 1) / step),
        [&](unsigned, unsigned buffer) {
          const auto [head, query] = take(copied);
          shared.first(buffer).template begin_copy<step>(q + at.b * s.T * s.q_stride + head * s.D, s.q_stride, query, T, D);
          shared.second(buffer).template begin_copy<step>(d_out + (at.b * s.T * s.H + head) * s.D, s.H * s.D, query, T, D);
          const unsigned r = threadIdx.x % step;
          if (threadIdx.x < 2 * step) {
            const float* const from = (threadIdx.x < step ? lse : delta) + (at.b * s.H + head) * s.T;
            const bool there = query + r < T;
            copy_async<4>(statistics + 2 * step * buffer + threadIdx.x, there ? from + query + r : from, there);
          }
        },
        [&](unsigned i, unsigned buffer) {
          const auto [head, query] = take(used);
          if (i == 0) keys.load(), values.load();
          if (key >= T || end_of_keys<Documents>(s, at.b, query + step - 1) <= key ||
              begin_of_keys<Documents>(s, at.b, query) >= key + strip)
            return;
          const bool edge =
              end_of_keys<Documents>(s, at.b, query) < key + strip || Documents::some_begin_behind(s, at.b, query, step, key);
          with_flag(!plain<Documents, dropout> || edge, [&](auto masked) {
            Strip<n> weights[1], slopes[1];
            add_scores(weights, keys, shared.first(buffer));
            add_scores(slopes, values, shared.second(buffer));
            const float *const lses = statistics + 2 * step * buffer, *const deltas = lses + step;
            FSDP_UNROLL
            for (unsigned j = 0; j < n; ++j) {  // rows of queries after T are zeros and add nothing
              SumFragment &weight = weights[0].of[j], &slope = slopes[0].of[j];
              SumFragment factor;
              if constexpr (dropout) column_factors(factor, mask, key, query + 8 * j, head, at.b);
              FSDP_UNROLL
              for (unsigned c = 0; c < 4; ++c) {
                const unsigned column = 8 * j + column_of_lane() + c % 2, row = key + row_of_lane() + c / 2 * 8;
                float probability = exp2_approximate(multiply_add(weight.part[c], scale2, -lses[column] * log2_of_e));
                if (masked && (row >= end_of_keys<Documents>(s, at.b, query + column) ||
                               row < begin_of_keys<Documents>(s, at.b, query + column)))
                  probability = 0;
                weight.part[c] = probability;
                if constexpr (dropout) weight.part[c] *= factor.part[c], slope.part[c] *= factor.part[c];
                slope.part[c] = probability * (slope.part[c] - deltas[column]);
              }
            }
            add_weighted(d_values, weights, shared.second(buffer));
            add_weighted(d_keys, slopes, shared.first(buffer));
          });
        });

    if (key >= T) return;
    store(dk + kv + key * s.kv_stride, s.kv_stride, T - key, D, d_keys[0], scale, scale);
    store(dv + kv + key * s.kv_stride, s.kv_stride, T - key, D, d_values[0], 1, 1);
  }
};

/// The gradients of 64 queries. They are sums over the keys up to the tile's last token.
template <class E, unsigned W, class Documents, bool dropout>
struct TensorQueryBackward {
  static constexpr unsigned most_threads = threads;
  static constexpr unsigned step = step_of(W), n = step / 8, rows = warps * strip;
  static_assert(2 * rows == Shared<E, W>::own_rows && rows == tensor_tiles.queries);
  E* dq;
  const E* d_out;
  const float *lse, *delta;
  const E *q, *k, *v;
  AttentionShape s;
  DropoutMask mask;
  float scale;

  __device__ void operator()() const {
    const unsigned T = static_cast<unsigned>(s.T), D = static_cast<unsigned>(s.D);
    const Place at(rows, T, static_cast<unsigned>(s.H), true);
    const std::size_t kv = at.b * s.T * s.kv_stride + at.head / (s.H / s.K) * s.D,
                      of_q = at.b * s.T * s.q_stride + at.head * s.D;
    const Shared<E, W> shared;
    shared.own.template begin_copy<rows>(q + of_q, s.q_stride, at.first, T, D);
    shared.own.after(rows).template begin_copy<rows>(d_out + (at.b * s.T * s.H + at.head) * s.D, s.H * s.D, at.first, T, D);

    const unsigned row_of_warp = warp_of_block() * strip, query = at.first + row_of_warp;
    OwnRows<E, W, 1, !dropout> queries{shared.own.after(row_of_warp)}, d_outs{shared.own.after(rows + row_of_warp)};
    const float scale2 = scale * log2_of_e;
    float down[2] = {}, delta_of[2] = {};
    for (unsigned half = 0; half < 2; ++half)
      if (const unsigned row = query + row_of_lane() + 8 * half; row < T) {
        down[half] = -lse[(at.b * s.H + at.head) * s.T + row] * log2_of_e;
        delta_of[half] = delta[(at.b * s.H + at.head) * s.T + row];
      }
    Strip<W / 8> d_queries[1];
    const unsigned end = end_of_keys<Documents>(s, at.b, (at.first + rows < T ? at.first + rows : T) - 1);
    const unsigned begin = begin_of_keys<Documents>(s, at.b, at.first) / step * step;
    each_step((end - begin + step - 1) / step,
              [&](unsigned i, unsigned buffer) {
                shared.first(buffer).template begin_copy<step>(k + kv, s.kv_stride, begin + i * step, T, D);
                shared.second(buffer).template begin_copy<step>(v + kv, s.kv_stride, begin + i * step, T, D);
              },
              [&](unsigned i, unsigned buffer) {
                const unsigned key = begin + i * step;
                if (i == 0) queries.load(), d_outs.load();
                if (query >= T || key >= end_of_keys<Documents>(s, at.b, query + strip - 1) ||
                    key + step <= begin_of_keys<Documents>(s, at.b, query))
                  return;
                const bool edge = key + step > end_of_keys<Documents>(s, at.b, query) ||
                                  Documents::some_begin_behind(s, at.b, query, strip, key);
                with_flag(!plain<Documents, dropout> || edge, [&](auto masked) {
                  Strip<n> scores[1], slopes[1];
                  add_scores(scores, queries, shared.first(buffer));
                  add_scores(slopes, d_outs, shared.second(buffer));
                  FSDP_UNROLL
                  for (unsigned j = 0; j < n; j += 4) {
                    SumFragment factors[4];
                    if constexpr (dropout) row_factors(factors, mask, key + 8 * j, query, at.head, at.b);
                    FSDP_UNROLL
                    for (unsigned c = 0; c < 16; ++c) {
                      const unsigned half = c / 2 % 2, column = key + 8 * (j + c / 4) + column_of_lane() + c % 2;
                      float& slope = slopes[0].of[j + c / 4].part[c % 4];
                      const float score = scores[0].of[j + c / 4].part[c % 4];
                      float probability = exp2_approximate(multiply_add(score, scale2, down[half]));
                      const unsigned row = query + row_of_lane() + 8 * half;
                      if (masked &&
                          (column >= end_of_keys<Documents>(s, at.b, row) || column < begin_of_keys<Documents>(s, at.b, row)))
                        probability = 0;
                      if constexpr (dropout) slope *= factors[c / 4].part[c % 4];
                      slope = probability * (slope - delta_of[half]);
                    }
                  }
                  add_weighted(d_queries, slopes, shared.first(buffer));
                });
              });

    if (query < T) store(dq + of_q + query * s.q_stride, s.q_stride, T - query, D, d_queries[0], scale, scale);
  }
};

/// Calls f.operator()<E, W, Documents, dropout>() with the type, and with W, the smallest compiled row width that is at least
/// D; columns from D on are zero.
template <class F>
cudaError_t with_instance(DType type, const AttentionShape& s, const DropoutMask& mask, F f) {
  const auto with_width = [&]<class E, class Documents, bool dropout>() {
    if (s.D <= 32) return f.template operator()<E, 32, Documents, dropout>();
    if (s.D <= 64) return f.template operator()<E, 64, Documents, dropout>();
    if (s.D <= 80) return f.template operator()<E, 80, Documents, dropout>();
    if (s.D <= 96) return f.template operator()<E, 96, Documents, dropout>();
    return f.template operator()<E, 128, Documents, dropout>();
  };
  return with_documents(s, [&]<class Documents>() {
    return with_flag(mask.dropped != 0, [&](auto dropout) {
      return type == DType::bf16 ? with_width.template operator()<bf16, Documents, dropout>()
                                 : with_width.template operator()<f16, Documents, dropout>();
    });
  });
}

template <class... Pointers>
void expect_aligned(Pointers... pointers) {
  for (const void* pointer : {static_cast<const void*>(pointers)...})
    expect(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0,
           "the tensors that attention reads and writes must be aligned to 16 bytes");
}

}  // namespace

cudaError_t tensor_attention_forward(cudaStream_t stream, const AttentionForwardCall& call) {
  const AttentionShape& s = call.shape;
  expect_aligned(call.q, call.k, call.v, call.out);
  return with_instance(call.type, s, call.mask, [&]<class E, unsigned W, class Documents, bool dropout>() {
    using Kernel = TensorForward<E, W, Documents, dropout>;
    return launch_kernel(stream, static_cast<unsigned>(attention_blocks(call.type, s).forward), threads, Shared<E, W>::bytes,
                         Kernel{static_cast<E*>(call.out), call.lse, static_cast<const E*>(call.q),
                                static_cast<const E*>(call.k), static_cast<const E*>(call.v), s, call.mask, scale_of(s)});
  });
}

cudaError_t tensor_attention_backward(cudaStream_t stream, const AttentionBackwardCall& call) {
  const AttentionShape& s = call.shape;
  expect_aligned(call.q, call.k, call.v, call.d_out, call.dq, call.dk, call.dv);
  const AttentionBlocks blocks = attention_blocks(call.type, s);
  return with_instance(call.type, s, call.mask, [&]<class E, unsigned W, class Documents, bool dropout>() {
    const E *const d_out = static_cast<const E*>(call.d_out), *const q = static_cast<const E*>(call.q),
                   *const k = static_cast<const E*>(call.k), *const v = static_cast<const E*>(call.v);
    using OfKeys = TensorKeyBackward<E, W, Documents, dropout>;
    const cudaError_t status = launch_kernel(stream, static_cast<unsigned>(blocks.keys), threads, OfKeys::shared_bytes,
                                             OfKeys{static_cast<E*>(call.dk), static_cast<E*>(call.dv), d_out, call.lse,
                                                    call.scratch, q, k, v, s, call.mask, scale_of(s)});
    if (status != cudaSuccess) return status;
    using OfQueries = TensorQueryBackward<E, W, Documents, dropout>;
    return launch_kernel(
        stream, static_cast<unsigned>(blocks.queries), threads, Shared<E, W>::bytes,
        OfQueries{static_cast<E*>(call.dq), d_out, call.lse, call.scratch, q, k, v, s, call.mask, scale_of(s)});
  });
}

}  // namespace fsdp::kernels
