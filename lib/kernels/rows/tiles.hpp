// Products of bf16 matrices on AMX's tiles (Intel 64 and IA-32 manual, volume 1, chapter "Programming with Intel AMX"): the
// building blocks that gemm() and attention share. A tile is 16 rows of 64 bytes. One instruction adds to a tile of 16 x 16
// floats the product of a tile of 16 x 32 numbers and a tile of 32 x 16 numbers. The second tile is stored as 16 rows of pairs.
//
// Operands are packed: 32 rows of a left operand, or 32 columns of a right one, make a panel, which is cut along the depth into
// steps of 32. A step consists of two tiles, stored one after the other. Elements outside the matrix are 0.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/math.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels::tiles {

inline constexpr std::size_t side = 32;           // rows, columns and depth of the innermost product
inline constexpr std::size_t step = side * side;  // numbers per step of a panel
inline constexpr std::size_t tile = step / 2;
inline constexpr std::size_t aligned(std::size_t n) { return (n + side - 1) / side * side; }

/// While an object of this class exists, this thread's tile registers are configured, each for 16 x 64 bytes.
class Registers {
 public:
  FSDP_INLINE Registers() {
    struct alignas(64) {
      unsigned char palette = 1, start_row = 0, reserved[14] = {};
      unsigned short bytes[16] = {};
      unsigned char rows[16] = {};
    } shapes;
    for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    _tile_loadconfig(&shapes);
  }
  FSDP_INLINE ~Registers() { _tile_release(); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

FSDP_INLINE __mmask32 first(std::size_t count) { return count >= 32 ? ~0u : (1u << count) - 1; }

/// Transposes 16 x 16 numbers of 32 bits, in place.
FSDP_INLINE void transpose(__m512i (&row)[16]) {
  __m512i pairs[16], fours[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88),
                  b = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd),
                  c = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88),
                  d = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xdd);
    row[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    row[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    row[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    row[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

/// Interleaves two rows of 32 numbers as pairs: `left` has columns [0, 16), `right` has columns [16, 32).
FSDP_INLINE void pair_up(__m512i upper, __m512i lower, __m512i& left, __m512i& right) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
                                       35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  left = _mm512_permutex2var_epi16(upper, low, lower);
  right = _mm512_permutex2var_epi16(upper, high, lower);
}

enum class Operand { left, right };

/// Packs one panel of a left operand [lanes, depth] or of a right operand [depth, lanes]; `lanes` is at most 32. Stored rows
/// are `stride` elements apart; `trans` as in gemm().
template <Operand operand, Trans trans>
FSDP_INLINE void pack(bf16* to, const bf16* from, std::size_t stride, std::size_t lanes, std::size_t depth) {
  constexpr bool rows_are_lanes = (operand == Operand::left) == (trans == Trans::no);
  const __m512i zero = _mm512_setzero_si512();
  for (std::size_t begin = 0; begin < depth; begin += side, to += step) {
    __m512i upper[16], lower[16];  // the rows of the two tiles
    if constexpr (rows_are_lanes) {
      const __mmask32 there = first(depth - begin);
      const bf16* row = from + begin;
      for (std::size_t i = 0; i < 16; ++i, row += stride) upper[i] = i < lanes ? _mm512_maskz_loadu_epi16(there, row) : zero;
      for (std::size_t i = 0; i < 16; ++i, row += stride)
        lower[i] = 16 + i < lanes ? _mm512_maskz_loadu_epi16(there, row) : zero;
    } else {
      const __mmask32 there = first(lanes);
      for (std::size_t i = 0; i < 16; ++i) {
        const std::size_t row = begin + 2 * i;
        const __m512i even = row < depth ? _mm512_maskz_loadu_epi16(there, from + row * stride) : zero,
                      odd = row + 1 < depth ? _mm512_maskz_loadu_epi16(there, from + (row + 1) * stride) : zero;
        pair_up(even, odd, upper[i], lower[i]);
      }
    }
    if constexpr (trans == Trans::yes) {
      transpose(upper);
      transpose(lower);
    }
    for (std::size_t i = 0; i < 16; ++i) {
      _mm512_storeu_si512(to + i * side, upper[i]);
      _mm512_storeu_si512(to + tile + i * side, lower[i]);
    }
  }
}

/// Rounds 32 rows of floats and stores them as a panel of the left operand; depth is a multiple of 32.
FSDP_INLINE void round_left(bf16* to, const float* from, std::size_t stride, std::size_t depth) {
  for (std::size_t row = 0; row < side; ++row)
    for (std::size_t l = 0; l < depth; l += side) {
      const float* x = from + row * stride + l;
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
      _mm512_storeu_si512(to + l * side + row * side, (__m512i)rounded);
    }
}

/// Rounds a right operand [32, columns] and stores it as panels of one step each; columns is a multiple of 32.
FSDP_INLINE void round_right(bf16* to, const float* from, std::size_t stride, std::size_t columns) {
  const __m512i in_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                            20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (std::size_t pair = 0; pair < 16; ++pair)
    for (std::size_t column = 0; column < columns; column += 16) {
      const float* x = from + 2 * pair * stride + column;
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + stride), _mm512_loadu_ps(x));
      _mm512_storeu_si512(to + column / 16 * tile + pair * side, _mm512_permutexvar_epi16(in_turns, (__m512i)rounded));
    }
}

/// Stores the first `columns` of 32 floats, rounded.
FSDP_INLINE void store_rounded(bf16* to, __m512 left, __m512 right, std::size_t columns) {
  _mm512_mask_storeu_epi16(to, first(columns), (__m512i)_mm512_cvtne2ps_pbh(right, left));
}

/// out[32,32] (=, +=) the product of two panels of `steps` steps; rows of out are `stride` floats apart.
FSDP_INLINE void multiply(std::size_t steps, const bf16* left, const bf16* right, float* out, std::size_t stride, Write write) {
  const std::size_t bytes = stride * sizeof(float);
  float* const below = out + 16 * stride;
  if (write == Write::add) {
    _tile_loadd(0, out, bytes);
    _tile_loadd(1, out + 16, bytes);
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + 16, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::size_t s = 0; s < steps; ++s, left += step, right += step) {
    _tile_loadd(4, left, 64);
    _tile_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + tile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + tile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, bytes);
  _tile_stored(1, out + 16, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + 16, bytes);
}

/// 32 numbers of a row, in fp32.
struct Row {
  __m512 left, right;
};
FSDP_INLINE Row load(const float* from, std::size_t columns) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(first(columns)), from),
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(first(columns) >> 16), from + 16)};
}
FSDP_INLINE Row load(const bf16* from, std::size_t columns) {
  const __m512i both = _mm512_maskz_loadu_epi16(first(columns), from);
  const __m512i left = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both)),
                right = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(left, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(right, 16))};
}
FSDP_INLINE Row operator+(Row a, Row b) { return {_mm512_add_ps(a.left, b.left), _mm512_add_ps(a.right, b.right)}; }
FSDP_INLINE Row operator*(Row a, Row b) { return {_mm512_mul_ps(a.left, b.left), _mm512_mul_ps(a.right, b.right)}; }

/// Stores the first `columns` numbers of a row. Stores that bypass the caches end with finish_stores().
FSDP_INLINE void store(float* to, Row x, std::size_t columns, bool past_caches) {
  if (past_caches) {
    _mm512_stream_ps(to, x.left);
    _mm512_stream_ps(to + 16, x.right);
  } else {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>(first(columns)), x.left);
    _mm512_mask_storeu_ps(to + 16, static_cast<__mmask16>(first(columns) >> 16), x.right);
  }
}
FSDP_INLINE void store(bf16* to, Row x, std::size_t columns, bool past_caches) {
  if (past_caches)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)_mm512_cvtne2ps_pbh(x.right, x.left));
  else
    store_rounded(to, x.left, x.right, columns);
}

/// Applies f to each of the 32 numbers.
template <class F>
FSDP_INLINE Row each(Row x, F f) {
  alignas(64) float values[side];
  _mm512_store_ps(values, x.left);
  _mm512_store_ps(values + 16, x.right);
  CpuLanes<5>::each(side, [f, v = &values[0]](std::size_t i) FSDP_LANE { v[i] = f(v[i]); });
  return {_mm512_load_ps(values), _mm512_load_ps(values + 16)};
}
FSDP_INLINE void finish_stores() { _mm_sfence(); }

}  // namespace fsdp::kernels::tiles
