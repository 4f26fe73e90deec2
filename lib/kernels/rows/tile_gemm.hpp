// Large products of bf16 matrices on AMX's tiles, by one thread. As in Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication" (2008), both operands are packed block by block, so that the innermost product, of 32 rows and 32
// columns over a stretch of the depth, finds the right operand in the first-level cache and the left one in the second.
#pragma once

#include "kernels/rows/tiles.hpp"
#include "kernels/tile_product.hpp"

namespace fsdp::kernels {

namespace tile_parts {

using namespace tiles;

/// A block of an operand: panels of 32 lanes, cut along the depth into stretches of `stretch` steps. Of each stretch all panels
/// lie one behind the other.
struct PackedBlock {
  bf16* data;
  std::size_t panels, steps, stretch;

  FSDP_INLINE std::size_t length(std::size_t first_step) const {
    return steps - first_step < stretch ? steps - first_step : stretch;
  }
  /// The panel's part of the stretch that begins at `first_step`.
  FSDP_INLINE bf16* at(std::size_t first_step, std::size_t panel) const {
    return data + (first_step * panels + panel * length(first_step)) * step;
  }

  /// op(from)'s lanes [0, lanes) and `depth`; rows in memory are walked along their length.
  template <Operand operand, Trans trans>
  FSDP_INLINE void fill(const bf16* from, std::size_t stride, std::size_t lanes, std::size_t depth) const {
    constexpr bool rows_are_lanes = (operand == Operand::left) == (trans == Trans::no);
    const std::size_t lane_stride = rows_are_lanes ? stride : 1, depth_stride = rows_are_lanes ? 1 : stride;
    const auto pack_step = [&](std::size_t panel, std::size_t s) FSDP_LANE {
      const std::size_t first = s / stretch * stretch, lane = panel * side;
      pack<operand, trans>(at(first, panel) + (s - first) * step, from + lane * lane_stride + s * side * depth_stride, stride,
                           lanes - lane < side ? lanes - lane : side, depth - s * side < side ? depth - s * side : side);
    };
    if constexpr (rows_are_lanes) {
      for (std::size_t panel = 0; panel < panels; ++panel)
        for (std::size_t s = 0; s < steps; ++s) pack_step(panel, s);
    } else {
      for (std::size_t s = 0; s < steps; ++s)
        for (std::size_t panel = 0; panel < panels; ++panel) pack_step(panel, s);
    }
  }
};

/// n cut into the fewest parts of at most `most`, as even as multiples of `grain` allow: the length of a part.
FSDP_INLINE std::size_t even_part(std::size_t n, std::size_t most, std::size_t grain) {
  const std::size_t parts = (n + most - 1) / most, part = (n + parts - 1) / parts;
  return (part + grain - 1) / grain * grain;
}

/// rows x columns of sums[32,32], rounded or not, where they belong.
FSDP_INLINE void put(float* to, std::size_t stride, const float* sums, std::size_t rows, std::size_t columns, Write write) {
  const __mmask16 left = static_cast<__mmask16>(first(columns)), right = static_cast<__mmask16>(first(columns) >> 16);
  for (std::size_t r = 0; r < rows; ++r, to += stride, sums += side) {
    __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + 16);
    if (write == Write::add) {
      a = _mm512_add_ps(a, _mm512_maskz_loadu_ps(left, to));
      b = _mm512_add_ps(b, _mm512_maskz_loadu_ps(right, to + 16));
    }
    _mm512_mask_storeu_ps(to, left, a);
    _mm512_mask_storeu_ps(to + 16, right, b);
  }
}
FSDP_INLINE void put(bf16* to, std::size_t stride, const float* sums, std::size_t rows, std::size_t columns, Write write) {
  for (std::size_t r = 0; r < rows; ++r, to += stride, sums += side) {
    __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + 16);
    if (write == Write::add) {
      const __m512i there = _mm512_maskz_loadu_epi16(first(columns), to);
      const __m512i left = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(there)),
                    right = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(there, 1));
      a = _mm512_add_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32(left, 16)));
      b = _mm512_add_ps(b, _mm512_castsi512_ps(_mm512_slli_epi32(right, 16)));
    }
    store_rounded(to, a, b, columns);
  }
}

/// Asks for what put() will write to.
template <class Out>
FSDP_INLINE void foresee(Out* to, std::size_t stride, std::size_t rows) {
  for (std::size_t r = 0; r < rows; ++r, to += stride) {
    __builtin_prefetch(to, 1);
    __builtin_prefetch(to + side - 1, 1);
  }
}

}  // namespace tile_parts

template <class Out>
FSDP_INLINE void tile_gemm(const TileProduct<Out>& p, std::byte* workspace) {
  using namespace tile_parts;
  constexpr std::size_t steps_in_first_cache = 8;
  auto* const left_memory = reinterpret_cast<bf16*>(workspace);
  bf16* const right_memory = left_memory + TileBlocks::left_numbers;
  auto* const sums = reinterpret_cast<float*>(right_memory + TileBlocks::depth * TileBlocks::columns);
  const Registers registers;
  const std::size_t columns_at_once = even_part(p.end - p.begin, TileBlocks::columns, side),
                    depth_at_once = even_part(p.k, TileBlocks::depth, side);
  for (std::size_t column = p.begin; column < p.end; column += columns_at_once) {
    const std::size_t columns = p.end - column < columns_at_once ? p.end - column : columns_at_once;
    for (std::size_t top = 0; top < p.m; top += TileBlocks::rows_of_sums) {
      const std::size_t bottom = p.m - top < TileBlocks::rows_of_sums ? p.m : top + TileBlocks::rows_of_sums;
      for (std::size_t l = 0; l < p.k; l += depth_at_once) {
        const std::size_t depth = p.k - l < depth_at_once ? p.k - l : depth_at_once, steps = (depth + side - 1) / side,
                          stretch = even_part(steps, steps_in_first_cache, 1);
        const PackedBlock right{right_memory, (columns + side - 1) / side, steps, stretch};
        if (p.trans_b == Trans::no)
          right.fill<Operand::right, Trans::no>(p.b + l * p.ldb + column, p.ldb, columns, depth);
        else
          right.fill<Operand::right, Trans::yes>(p.b + column * p.ldb + l, p.ldb, columns, depth);
        const std::size_t rows_at_once = even_part(bottom - top, TileBlocks::left_numbers / (steps * side), side);
        for (std::size_t row = top; row < bottom; row += rows_at_once) {
          const std::size_t rows = bottom - row < rows_at_once ? bottom - row : rows_at_once;
          const PackedBlock left{left_memory, (rows + side - 1) / side, steps, stretch};
          if (p.trans_a == Trans::no)
            left.fill<Operand::left, Trans::no>(p.a + row * p.lda + l, p.lda, rows, depth);
          else
            left.fill<Operand::left, Trans::yes>(p.a + l * p.lda + row, p.lda, rows, depth);
          for (std::size_t j = 0; j < right.panels; ++j) {
            float* const own_sums = depth == p.k ? sums : sums + (j * TileBlocks::rows_of_sums + row - top) * side;
            const auto rows_of = [&](std::size_t i) FSDP_LANE { return rows - i * side < side ? rows - i * side : side; };
            const auto out_of = [&](std::size_t i) FSDP_LANE { return p.out + (row + i * side) * p.ldo + column + j * side; };
            for (std::size_t s = 0; s < steps; s += stretch) {
              const bool last = l + depth == p.k && s + stretch >= steps;
              if (last) foresee(out_of(0), p.ldo, rows_of(0));
              for (std::size_t i = 0; i < left.panels; ++i) {
                if (last && i + 1 < left.panels) foresee(out_of(i + 1), p.ldo, rows_of(i + 1));
                multiply(left.length(s), left.at(s, i), right.at(s, j), own_sums + i * step, side,
                         l + s > 0 ? Write::add : Write::overwrite);
                if (last)
                  put(out_of(i), p.ldo, own_sums + i * step, rows_of(i), columns - j * side < side ? columns - j * side : side,
                      p.write);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace fsdp::kernels
