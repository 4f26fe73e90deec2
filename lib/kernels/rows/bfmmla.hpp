// Products of bf16 matrices by the instruction BFMMLA (Arm architecture reference manual, FEAT_BF16): the building blocks of
// tile_gemm.hpp, with the names of tiles.hpp. BFMMLA adds to 2 x 2 floats, which fill a register, the product of 2 x 4 and 4 x
// 2 numbers. The second operand is stored transposed, so that both operands are two lanes of four numbers along the depth.
//
// Operands are packed: 32 rows of a left operand, or 32 columns of a right one, make a panel, which is cut along the depth into
// steps of 32. A step consists of eight groups: four numbers of each lane. Elements outside the matrix are 0.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstddef>

#include "base/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/math.hpp"

namespace fsdp::kernels::tiles {

inline constexpr std::size_t side = 32;           // rows, columns and depth of the innermost product
inline constexpr std::size_t step = side * side;  // numbers per step of a panel
inline constexpr std::size_t group = 4 * side;

/// No registers must be configured.
struct Registers {
  FSDP_INLINE Registers() {}
};

enum class Operand { left, right };

/// Packs one step of a left operand [lanes, depth] or of a right operand [depth, lanes]; `lanes` and `depth` are at most 32.
/// Stored rows are `stride` elements apart; `trans` as in gemm().
template <Operand operand, Trans trans>
FSDP_INLINE void pack(bf16* to, const bf16* from, std::size_t stride, std::size_t lanes, std::size_t depth) {
  constexpr bool rows_are_lanes = (operand == Operand::left) == (trans == Trans::no);
  std::uint16_t whole[step];
  const std::uint16_t* in = &from->bits;
  if (lanes < side || depth < side) {
    const std::size_t rows = rows_are_lanes ? lanes : depth, columns = rows_are_lanes ? depth : lanes;
    for (std::size_t i = 0; i < step; ++i) whole[i] = 0;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) whole[r * side + c] = in[r * stride + c];
    in = whole;
    stride = side;
  }
  std::uint16_t* const out = &to->bits;
  if constexpr (rows_are_lanes) {
    for (std::size_t lane = 0; lane < side; lane += 2, in += 2 * stride)
      for (std::size_t d = 0; d < side; d += 8) {
        const uint64x2_t upper = vreinterpretq_u64_u16(vld1q_u16(in + d)),
                         lower = vreinterpretq_u64_u16(vld1q_u16(in + stride + d));
        vst1q_u16(out + d / 4 * group + lane * 4, vreinterpretq_u16_u64(vtrn1q_u64(upper, lower)));
        vst1q_u16(out + (d / 4 + 1) * group + lane * 4, vreinterpretq_u16_u64(vtrn2q_u64(upper, lower)));
      }
  } else {
    for (std::size_t d = 0; d < side; d += 4, in += 4 * stride)
      for (std::size_t lane = 0; lane < side; lane += 8)
        vst4q_u16(out + d * side + lane * 4, {{vld1q_u16(in + lane), vld1q_u16(in + stride + lane),
                                               vld1q_u16(in + 2 * stride + lane), vld1q_u16(in + 3 * stride + lane)}});
  }
}

/// out[8,8] (=, +=) the product of 8 lanes of two panels.
FSDP_INLINE void multiply_eight(std::size_t steps, const bf16* left, const bf16* right, float* out, std::size_t stride,
                                Write write) {
  const auto load = [](const bf16* from) FSDP_LANE { return vld1q_bf16(reinterpret_cast<const bfloat16_t*>(from)); };
  float32x4_t total[4][4];  // of 2 x 2 sums each
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j)
      total[i][j] = write == Write::add
                        ? vcombine_f32(vld1_f32(out + 2 * i * stride + 2 * j), vld1_f32(out + (2 * i + 1) * stride + 2 * j))
                        : vdupq_n_f32(0);
  for (std::size_t g = 0; g < steps * (step / group); ++g, left += group, right += group) {
    bfloat16x8_t a[4], b[4];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      a[i] = load(left + 8 * i);
      b[i] = load(right + 8 * i);
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (std::size_t j = 0; j < 4; ++j) total[i][j] = vbfmmlaq_f32(total[i][j], a[i], b[j]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      vst1_f32(out + 2 * i * stride + 2 * j, vget_low_f32(total[i][j]));
      vst1_f32(out + (2 * i + 1) * stride + 2 * j, vget_high_f32(total[i][j]));
    }
}

/// out[32,32] (=, +=) the product of two panels of `steps` steps; rows of out are `stride` floats apart.
FSDP_INLINE void multiply(std::size_t steps, const bf16* left, const bf16* right, float* out, std::size_t stride, Write write) {
  for (std::size_t i = 0; i < side; i += 8)
    for (std::size_t j = 0; j < side; j += 8)
      multiply_eight(steps, left + 4 * i, right + 4 * j, out + i * stride + j, stride, write);
}

/// 32 numbers of a row, in fp32.
struct Row {
  float value[side];
};
/// Calls f(i) for the elements of a row, and returns the results.
template <class F>
FSDP_INLINE Row row_of(F f) {
  Row row;
#pragma omp simd
  for (std::size_t i = 0; i < side; ++i) row.value[i] = f(i);
  return row;
}
template <class T>
FSDP_INLINE Row load(const T* from, std::size_t columns) {
  if (columns >= side) return row_of([&](std::size_t i) FSDP_LANE { return static_cast<float>(from[i]); });
  Row row{};
  for (std::size_t i = 0; i < columns; ++i) row.value[i] = static_cast<float>(from[i]);
  return row;
}
FSDP_INLINE Row operator+(const Row& a, const Row& b) {
  return row_of([&](std::size_t i) FSDP_LANE { return a.value[i] + b.value[i]; });
}
FSDP_INLINE Row operator*(const Row& a, const Row& b) {
  return row_of([&](std::size_t i) FSDP_LANE { return a.value[i] * b.value[i]; });
}
template <class F>
FSDP_INLINE Row each(const Row& x, F f) {
  return row_of([&](std::size_t i) FSDP_LANE { return f(x.value[i]); });
}

/// Stores the first `columns` numbers of a row. No store bypasses the caches here.
template <class T>
FSDP_INLINE void store(T* to, const Row& x, std::size_t columns, bool) {
  const std::size_t n = columns < side ? columns : side;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) to[i] = T(x.value[i]);
}
FSDP_INLINE void finish_stores() {}

}  // namespace fsdp::kernels::tiles
#endif
