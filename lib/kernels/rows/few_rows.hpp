// Products with few rows on the left, as when one token for each of some sequences goes through a model. They take as long as
// it takes to read the matrix on the right: so that is read once, as it lies, and each thread reads a part that is contiguous
// or has long rows. oneDNN's gemm packs it first. The sum of an element has an order that depends on the sizes of the right
// matrix alone, so that a row's result is the same however many rows there are.
#pragma once

#include <cstddef>

#include "base/element.hpp"
#include "kernels/rows/lanes.hpp"
#include "kernels/rows/small_gemm.hpp"

#if !defined(__CUDACC__)

namespace fsdp::kernels {

/// Rows of the left operand that one call takes.
inline constexpr std::size_t most_few_rows = 8;

namespace few_rows_parts {

/// As many numbers as a register has floats.
template <int level, class E>
FSDP_INLINE typename Simd<level>::Vector widen(const E* p) {
  using S = Simd<level>;
  if constexpr (dtype_of<E> == DType::f32) {
    return S::load(p);
  } else if constexpr (dtype_of<E> == DType::bf16) {
    if constexpr (level == 4)  // with masks: g++ 12 warns of its own headers else (bug 105593)
      return (typename S::Vector)_mm512_maskz_slli_epi32(
          0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
    else if constexpr (level == 3)
      return (typename S::Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                                                   16);
    else
      return (typename S::Vector)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 16);
  } else {
    float wide[S::width];
#pragma omp simd
    for (int i = 0; i < S::width; ++i) wide[i] = p[i];
    return S::load(wide);
  }
}

/// The sum of a register's floats, halves by halves.
template <int level, class V>
FSDP_INLINE float fold(V x) {
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
}

/// Asks for what lies `bytes` behind p, which need not be there.
FSDP_INLINE void ask_for(const void* p, std::size_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + bytes));
}

template <class Out>
FSDP_INLINE void put(Out* out, float sum, bool add) {
  *out = Out(add ? static_cast<float>(*out) + sum : sum);
}

}  // namespace few_rows_parts

/// out[m,n] (=, +=) a[m,k] op(b): "row" i has columns [i * block, (i + 1) * block) of the result. b is [n,k] if `transposed`,
/// else [k,n].
template <class E, class Out, bool transposed>
struct FewRowsProduct {
  static constexpr std::size_t most_columns = transposed ? 4 : 256;  // of a block
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
      std::size_t column = begin;
      for (; column + 4 <= end; column += 4) dots<level, 4>(column);
      for (; column < end; ++column) dots<level, 1>(column);
    } else {
      std::size_t row = 0;
      for (; row + 8 <= m; row += 8) rank_updates<level, 8>(row, begin, end);
      for (; row + 4 <= m; row += 4) rank_updates<level, 4>(row, begin, end);
      for (; row + 2 <= m; row += 2) rank_updates<level, 2>(row, begin, end);
      for (; row < m; ++row) rank_updates<level, 1>(row, begin, end);
    }
  }

 private:
  template <int level, int columns>
  FSDP_INLINE void dots(std::size_t column) const {
    std::size_t row = 0;
    for (; row + 4 <= m; row += 4) dot_tile<level, columns, 4>(row, column);
    for (; row + 2 <= m; row += 2) dot_tile<level, columns, 2>(row, column);
    for (; row < m; ++row) dot_tile<level, columns, 1>(row, column);
  }

  template <int level, int columns, int rows>
  FSDP_INLINE void dot_tile(std::size_t row, std::size_t column) const {
    using namespace few_rows_parts;
    using S = Simd<level>;
    constexpr std::size_t width = S::width;
    typename S::Vector total[columns][rows] = {};
    const float* const left = a + row * k;
    const E* const right = b + column * ldb;
    std::size_t l = 0;
    for (; l + width <= k; l += width) {
      typename S::Vector x[rows];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) x[r] = S::load(left + static_cast<std::size_t>(r) * k + l);
#pragma GCC unroll 8
      for (int c = 0; c < columns; ++c) {
        const E* const at = right + static_cast<std::size_t>(c) * ldb + l;
        ask_for(at, columns * ldb * sizeof(E));  // the next tile's: each row alone is too short for the hardware to foresee
        const typename S::Vector w = widen<level>(at);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) total[c][r] = S::multiply_add(x[r], w, total[c][r]);
      }
    }
    for (int c = 0; c < columns; ++c)
      for (int r = 0; r < rows; ++r) {
        float sum = few_rows_parts::fold<level>(total[c][r]);
        for (std::size_t rest = l; rest < k; ++rest)
          sum += left[static_cast<std::size_t>(r) * k + rest] *
                 static_cast<float>(right[static_cast<std::size_t>(c) * ldb + rest]);
        put(out + (row + static_cast<std::size_t>(r)) * ldo + column + static_cast<std::size_t>(c), sum, add);
      }
  }

  /// Sums of whole rows of b, four at a time, in memory that stays in the nearest cache.
  template <int level, int rows>
  FSDP_INLINE void rank_updates(std::size_t row, std::size_t begin, std::size_t end) const {
    using namespace few_rows_parts;
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
        for (std::size_t t = 0; t < together; ++t) w[t] = widen<level>(right + t * ldb + c);
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
      for (std::size_t c = 0; c < columns; ++c)
        put(out + (row + static_cast<std::size_t>(r)) * ldo + begin + c, sums[r][c], add);
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
