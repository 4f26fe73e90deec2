// Products with a left matrix of few rows, as when a model processes one token of each of several sequences. The run time of
// such a product is about the time to read the right matrix. So the right matrix is read once and, unlike in oneDNN's gemm, is
// not packed. Each thread reads a part that is contiguous or has long rows. The order of an element's sum depends only on the
// right matrix's size, so that a row's result does not depend on the number of rows.
#pragma once

#include <cstddef>

#include "base/element.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/small_gemm.hpp"

#if !defined(__CUDACC__)

namespace fsdp::kernels {

namespace skinny_parts {

/// Loads numbers from p, converted to floats, into one register.
template <int level, class E>
FSDP_INLINE typename Simd<level>::Vector upcast(const E* p) {
  using S = Simd<level>;
  if constexpr (dtype_of<E> == DType::f32) {
    return S::load(p);
#if defined(__x86_64__)
  } else if constexpr (dtype_of<E> == DType::bf16) {
    if constexpr (level == 4)  // with masks, because otherwise g++ 12 warns about its own headers (bug 105593)
      return (typename S::Vector)_mm512_maskz_slli_epi32(
          0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
    else if constexpr (level == 3)
      return (typename S::Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                                                   16);
    else
      return (typename S::Vector)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 16);
#endif
  } else {
    float wide[S::width];
#pragma omp simd
    for (int i = 0; i < S::width; ++i) wide[i] = p[i];
    return S::load(wide);
  }
}

/// The sum of a register's floats: its upper half is added to its lower half until one float is left.
template <int level, class V>
FSDP_INLINE float fold(V x) {
#if !defined(__x86_64__)
  return (x[0] + x[2]) + (x[1] + x[3]);
#else
  if constexpr (level == 4) {
    float part[16];
    Simd<4>::store(part, x);
    return fold<3>(_mm256_add_ps(_mm256_loadu_ps(part), _mm256_loadu_ps(part + 8)));
  } else if constexpr (level == 3) {
    return fold<2>(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
  } else {
    const auto two = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
#endif
}

/// The sums of four registers, each in the order of fold().
template <int level, class V>
FSDP_INLINE void fold(const V (&x)[4], float (&sums)[4]) {
  if constexpr (level == 4) {  // with masks, as in upcast()
    const auto quarters = []<int which>(V a, V b) FSDP_LANE { return (V)_mm512_maskz_shuffle_f32x4(0xffff, a, b, which); };
    const auto halves = [&](V a, V b) FSDP_LANE {
      return quarters.template operator()<0x44>(a, b) + quarters.template operator()<0xee>(a, b);
    };
    const V two = halves(x[0], x[1]), others = halves(x[2], x[3]);
    V all = quarters.template operator()<0x88>(two, others) + quarters.template operator()<0xdd>(two, others);
    all += (V)_mm512_maskz_permute_ps(0xffff, all, 0x4e);
    all += (V)_mm512_maskz_permute_ps(0xffff, all, 0xb1);
    float part[16];
    Simd<4>::store(part, all);
    for (int c = 0; c < 4; ++c) sums[c] = part[4 * c];
  } else {
    for (int c = 0; c < 4; ++c) sums[c] = fold<level>(x[c]);
  }
}

}  // namespace skinny_parts

/// out[m,n] (=, +=) a[m,k] op(b). "Row" i computes columns [i * block, (i + 1) * block) of the result. b is [n,k] if
/// `transposed`, else [k,n].
template <class E, class Out, bool transposed>
struct FewRowsProduct {
  static constexpr std::size_t most_columns = transposed ? 4 : 256;  // the largest number of columns of a block
  const float* a;
  std::size_t m, n, k;
  const E* b;
  std::size_t ldb;
  Out* out;
  std::size_t ldo;
  bool add;
  std::size_t block;

  template <int level>
  FSDP_INLINE void operator()(CpuLanes<level>, std::size_t i) const {
    const std::size_t begin = i * block, end = n - begin < block ? n : begin + block;
    if constexpr (transposed) {
      if (end - begin == most_columns) return dots<level>(begin);
      for (std::size_t column = begin; column < end; ++column)
        for (std::size_t row = 0; row < m; ++row) put(row, column, dot<level>(row, column));
    } else {
      std::size_t row = 0;
      for (; row + 8 <= m; row += 8) rank_updates<level, 8>(row, begin, end);
      for (; row + 4 <= m; row += 4) rank_updates<level, 4>(row, begin, end);
      for (; row + 2 <= m; row += 2) rank_updates<level, 2>(row, begin, end);
      for (; row < m; ++row) rank_updates<level, 1>(row, begin, end);
    }
  }

 private:
  static constexpr int nearest_cache = 3, next_cache = 2;  // values of the third argument of __builtin_prefetch

  FSDP_INLINE void put(std::size_t row, std::size_t column, float sum) const {
    Out& to = out[row * ldo + column];
    to = Out(add ? static_cast<float>(to) + sum : sum);
  }

  /// The columns of a whole block. The block's part of b is read from memory once and then stays in a near cache while all rows
  /// of a are processed in tiles. Meanwhile each tile prefetches a share of the next blocks. Prefetches are in memory order,
  /// because that is fastest. Tiles of up to three rows only wait for memory, so they prefetch into the nearest cache. The
  /// nearest cache supports only few open requests, which would delay larger tiles; so larger tiles prefetch into the next
  /// cache.
  template <int level>
  FSDP_INLINE void dots(std::size_t column) const {
    constexpr std::size_t most_rows = Simd<level>::registers == 32 ? 6 : 3;  // the number of rows whose sums fit into registers
    constexpr std::size_t step_bytes = most_columns * Simd<level>::width * sizeof(E);
    const std::size_t tiles = (m + most_rows - 1) / most_rows,
                      share = step_bytes / (tiles < 2   ? 1
                                            : tiles < 4 ? 2
                                                        : 4),
                      blocks_ahead = m < 4 ? 1 : 2;
    auto next = reinterpret_cast<std::uintptr_t>(b + (column + blocks_ahead * most_columns) * ldb);
    const std::uintptr_t end = next + most_columns * ldb * sizeof(E);
    for (std::size_t tile = 0, row = 0; tile < tiles; ++tile) {
      const std::size_t rows = m * (tile + 1) / tiles - row;
      const Ahead ahead{next, next < end ? share : 0};
      switch (rows) {
        case 1:
          dot_tile<level, 1>(row, column, ahead);
          break;
        case 2:
          dot_tile<level, 2>(row, column, ahead);
          break;
        case 3:
          dot_tile<level, 3>(row, column, ahead);
          break;
        default:
          if constexpr (most_rows == 6) {
            if (rows == 4)
              dot_tile<level, 4>(row, column, ahead);
            else if (rows == 5)
              dot_tile<level, 5>(row, column, ahead);
            else
              dot_tile<level, 6>(row, column, ahead);
          }
      }
      next += k / Simd<level>::width * share;
      row += rows;
    }
  }

  /// The prefetches of a tile: `share` bytes from `begin` on for each step along k. The addresses may be outside b, since a
  /// prefetch cannot fail.
  struct Ahead {
    std::uintptr_t begin;
    std::size_t share;
  };

  template <int level, int rows>
  FSDP_INLINE void dot_tile(std::size_t row, std::size_t column, Ahead ahead) const {
    using namespace skinny_parts;
    using S = Simd<level>;
    constexpr std::size_t width = S::width;
    constexpr int columns = most_columns;
    typename S::Vector total[rows][columns] = {};
    const float* const left = a + row * k;
    const E* const right = b + column * ldb;
    std::uintptr_t next = ahead.begin;
    std::size_t l = 0;
    for (; l + width <= k; l += width) {
      for (std::size_t line = 0; line < ahead.share; line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(next + line), 0, rows < 4 ? nearest_cache : next_cache);
      next += ahead.share;
      typename S::Vector w[columns];
#pragma GCC unroll 4
      for (int c = 0; c < columns; ++c) w[c] = upcast<level>(right + static_cast<std::size_t>(c) * ldb + l);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const typename S::Vector x = S::load(left + static_cast<std::size_t>(r) * k + l);
#pragma GCC unroll 4
        for (int c = 0; c < columns; ++c) total[r][c] = S::multiply_add(x, w[c], total[r][c]);
      }
    }
    float sums[rows][columns];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) fold<level>(total[r], sums[r]);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) {
        if (l < k) sums[r][c] = with_rest(sums[r][c], l, row + r, column + c);
        put(row + r, column + c, sums[r][c]);
      }
  }

  /// Computes one element. Used for columns that do not fill a block.
  template <int level>
  FSDP_INLINE float dot(std::size_t row, std::size_t column) const {
    using S = Simd<level>;
    constexpr std::size_t width = S::width;
    typename S::Vector total = {};
    std::size_t l = 0;
    for (; l + width <= k; l += width)
      total = S::multiply_add(S::load(a + row * k + l), skinny_parts::upcast<level>(b + column * ldb + l), total);
    return with_rest(skinny_parts::fold<level>(total), l, row, column);
  }

  /// Adds the products from index l to k, which do not fill a register, to `sum`.
  FSDP_INLINE float with_rest(float sum, std::size_t l, std::size_t row, std::size_t column) const {
    for (; l < k; ++l) sum += a[row * k + l] * static_cast<float>(b[column * ldb + l]);
    return sum;
  }

  /// Adds multiples of rows of b to the sums of `rows` rows, four rows of b at a time. The sums stay in the nearest cache.
  template <int level, int rows>
  FSDP_INLINE void rank_updates(std::size_t row, std::size_t begin, std::size_t end) const {
    using namespace skinny_parts;
    using S = Simd<level>;
    constexpr std::size_t width = S::width, together = 4;
    const std::size_t columns = end - begin, whole = columns / width * width;
    float sums[rows][most_columns];
    for (int r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) sums[r][c] = 0;
    const float* const left = a + row * k;
    std::size_t l = 0;
    for (; l + together <= k; l += together) {
      const E* const right = b + l * ldb + begin;
      for (std::size_t c = 0; c < whole; c += width) {
        typename S::Vector w[together];
#pragma GCC unroll 4
        for (std::size_t t = 0; t < together; ++t) w[t] = upcast<level>(right + t * ldb + c);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          const float* const x = left + static_cast<std::size_t>(r) * k + l;
          typename S::Vector total = S::load(sums[r] + c);
#pragma GCC unroll 4
          for (std::size_t t = 0; t < together; ++t) total = S::multiply_add(S::all(x[t]), w[t], total);
          S::store(sums[r] + c, total);
        }
      }
      for (std::size_t c = whole; c < columns; ++c)
        for (int r = 0; r < rows; ++r)
          for (std::size_t t = 0; t < together; ++t)
            sums[r][c] += left[static_cast<std::size_t>(r) * k + l + t] * static_cast<float>(right[t * ldb + c]);
    }
    for (; l < k; ++l)
      for (int r = 0; r < rows; ++r) {
        const float x = left[static_cast<std::size_t>(r) * k + l];
        for (std::size_t c = 0; c < columns; ++c) sums[r][c] += x * static_cast<float>(b[l * ldb + begin + c]);
      }
    for (int r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) put(row + static_cast<std::size_t>(r), begin + c, sums[r][c]);
  }
};

}  // namespace fsdp::kernels

#endif

#define FSDP_FEW_ROWS_BODIES_OF(X, E, Out) X(FewRowsProduct<E, Out, false>) X(FewRowsProduct<E, Out, true>)
#define FSDP_FEW_ROWS_BODIES(X)            \
  FSDP_FEW_ROWS_BODIES_OF(X, float, float) \
  FSDP_FEW_ROWS_BODIES_OF(X, bf16, bf16)   \
  FSDP_FEW_ROWS_BODIES_OF(X, bf16, float)  \
  FSDP_FEW_ROWS_BODIES_OF(X, f16, f16)     \
  FSDP_FEW_ROWS_BODIES_OF(X, f16, float)
