// Products of small packed matrices in the cache, for attention on the CPU. On such products, oneDNN's sgemm reaches only half
// of the peak, because each call packs its operands again. One tile of the result is held in registers.
#pragma once

#include <cstddef>

#if !defined(__CUDACC__)
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "kernels/math.hpp"

namespace fsdp::kernels {

/// A register of floats. A level's registers are used only in the source file that is compiled for the level.
template <int level>
struct Simd {
  static constexpr int width = level == 4 ? 16 : level == 3 ? 8 : 4, registers = level >= 4 ? 32 : 16;
  typedef float Vector __attribute__((vector_size(width * sizeof(float))));

  FSDP_INLINE static Vector load(const float* p) {
    Vector x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  FSDP_INLINE static void store(float* p, Vector x) { __builtin_memcpy(p, &x, sizeof(x)); }
  FSDP_INLINE static Vector all(float x) { return x - Vector{}; }
  template <class V>  // a template, so that the compiler checks only the branch of its own level
  FSDP_INLINE static V multiply_add(V a, V b, V c) {
    if constexpr (level == 4)
      return _mm512_fmadd_ps(a, b, c);
    else if constexpr (level == 3)
      return _mm256_fmadd_ps(a, b, c);
    else if constexpr (level == 2)
      return a * b + c;
    else
      return (V)vfmaq_f32(c, a, b);
  }
};

/// The left operand a[m, k] of a product. Element (i, l) is at data[i * row + l * step], so that the matrix may be transposed.
struct LeftOperand {
  const float* data;
  std::size_t row, step;
};

/// out[rows, vectors * width] (=, +=) a[rows, depth] b[depth, vectors * width].
template <int level, int rows, int vectors>
FSDP_INLINE void gemm_tile(std::size_t depth, LeftOperand a, const float* b, std::size_t ldb, float* out, std::size_t ldo,
                           bool add) {
  using S = Simd<level>;
  typename S::Vector total[rows][vectors];
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      total[r][v] = add ? S::load(out + static_cast<std::size_t>(r) * ldo + static_cast<std::size_t>(v * S::width))
                        : typename S::Vector{};
  for (std::size_t l = 0; l < depth; ++l) {
    typename S::Vector right[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) right[v] = S::load(b + l * ldb + static_cast<std::size_t>(v * S::width));
#pragma GCC unroll 24
    for (int r = 0; r < rows; ++r) {
      const typename S::Vector left = S::all(a.data[static_cast<std::size_t>(r) * a.row + l * a.step]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) total[r][v] = S::multiply_add(left, right[v], total[r][v]);
    }
  }
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      S::store(out + static_cast<std::size_t>(r) * ldo + static_cast<std::size_t>(v * S::width), total[r][v]);
}

/// The number of rows of a tile. It leaves registers for the right operand and one broadcast. All these numbers divide 48.
template <int level, int vectors>
inline constexpr int tile_rows = Simd<level>::registers == 32 ? (vectors == 4   ? 6
                                                                 : vectors == 3 ? 8
                                                                                : 12)
                                                              : (vectors == 1 ? 12 : 6);
/// The largest width of a tile, in registers.
template <int level>
inline constexpr int most_vectors = Simd<level>::registers == 32 ? 4 : 2;

/// Computes one strip of columns, `vectors` registers wide.
template <int level, int vectors>
FSDP_INLINE void gemm_strip(std::size_t m, std::size_t depth, LeftOperand a, const float* b, std::size_t ldb, float* out,
                            std::size_t ldo, bool add) {
  constexpr int rows = tile_rows<level, vectors>;
  for (std::size_t i = 0; i < m; i += rows)
    gemm_tile<level, rows, vectors>(depth, {a.data + i * a.row, a.row, a.step}, b, ldb, out + i * ldo, ldo, add);
}

/// out[m, n] (=, +=) a[m, depth] b[depth, n]. m is rounded up to whole tiles (of at most 12 rows), and n to whole registers (of
/// at most 16 floats). The memory of a, b and out must be padded to these sizes. The padding of a and b affects only the
/// padding of `out`.
template <int level>
__attribute__((noinline)) void small_gemm(std::size_t m, std::size_t n, std::size_t depth, LeftOperand a, const float* b,
                                          std::size_t ldb, float* out, std::size_t ldo, bool add) {
  constexpr std::size_t width = Simd<level>::width, most = most_vectors<level>;
  constexpr std::size_t slab = 64;  // the depth of a slab: a strip of b then stays in the first-level cache from tile to tile
  for (std::size_t l = 0; l < depth; l += slab) {
    const std::size_t d = depth - l < slab ? depth - l : slab;
    const LeftOperand left = {a.data + l * a.step, a.row, a.step};
    const bool again = add || l > 0;
    for (std::size_t j = 0; j < n; j += most * width) {
      const std::size_t vectors = (n - j + width - 1) / width;
      const float* right = b + l * ldb + j;
      if (most == 4 && vectors >= 4)
        gemm_strip<level, most>(m, d, left, right, ldb, out + j, ldo, again);
      else if (most == 4 && vectors == 3)
        gemm_strip<level, most == 4 ? 3 : 1>(m, d, left, right, ldb, out + j, ldo, again);
      else if (vectors >= 2)
        gemm_strip<level, 2>(m, d, left, right, ldb, out + j, ldo, again);
      else
        gemm_strip<level, 1>(m, d, left, right, ldb, out + j, ldo, again);
    }
  }
}

}  // namespace fsdp::kernels
#endif
