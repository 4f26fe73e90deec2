// Large products of bf16 matrices on tiles (of AMX: tiles.hpp, or for BFMMLA: bfmmla.hpp), by one thread. As in Goto and van de
// Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), both operands are packed block by block. The innermost
// product has 32 rows and 32 columns, over a stretch of the depth. Its right operand is in the first-level cache, and its left
// operand in the second-level cache.
#pragma once

#include <cstdint>

#include "kernels/rows/lanes.hpp"
#include "kernels/rows/pointwise.hpp"
#if defined(__x86_64__)
#include "kernels/rows/tiles.hpp"
#else
#include "kernels/rows/bfmmla.hpp"
#endif
#include "kernels/tile_product.hpp"

namespace fsdp::kernels {

namespace tile_parts {

using namespace tiles;

/// A block of an operand: panels of 32 lanes (rows of a left operand, columns of a right operand), cut along the depth into
/// stretches of `stretch` steps. For each stretch, the parts of all panels in this stretch are stored one after another.
struct PackedBlock {
  bf16* data;
  std::size_t panels, steps, stretch;

  FSDP_INLINE std::size_t length(std::size_t first_step) const {
    return steps - first_step < stretch ? steps - first_step : stretch;
  }
  /// Returns the panel's part of the stretch that begins at `first_step`.
  FSDP_INLINE bf16* at(std::size_t first_step, std::size_t panel) const {
    return data + (first_step * panels + panel * length(first_step)) * step;
  }

  /// Packs lanes [0, lanes) of op(from), along a depth of `depth`. Rows of `from` are read along their length.
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

/// Divides n into the fewest parts of at most `most` elements, as evenly as multiples of `grain` allow, and returns the length
/// of a part. `most` is a multiple of `grain`.
FSDP_INLINE std::size_t even_part(std::size_t n, std::size_t most, std::size_t grain) {
  const std::size_t parts = (n + most - 1) / most, part = (n + parts - 1) / parts;
  return (part + grain - 1) / grain * grain;
}

/// Returns true if rows of 32 columns are whole cache lines. Stores that bypass the caches write such rows, so that the CPU
/// does not read the lines first. A product's result is too large to stay in the caches.
template <class Out>
FSDP_INLINE bool whole_lines(const Out* to, std::size_t stride, std::size_t columns) {
  return columns >= side && reinterpret_cast<std::uintptr_t>(to) % 64 == 0 && stride * sizeof(Out) % 64 == 0;
}
/// foresee() prefetches the memory that finish() reads at (row, column), and the memory that finish() writes without filling
/// whole cache lines.
template <class T>
FSDP_INLINE void ask_for(const T* from, std::size_t stride, std::size_t rows) {
  for (std::size_t r = 0; r < rows; ++r, from += stride) {
    __builtin_prefetch(from, 1);
    __builtin_prefetch(from + side - 1, 1);
  }
}
template <class Out>
FSDP_INLINE void foresee(const StoreSums<Out>& to, std::size_t row, std::size_t column, std::size_t rows, std::size_t columns) {
  const Out* out = to.out + row * to.ldo + column;
  if (to.write == Write::add || !whole_lines(out, to.ldo, columns)) ask_for(out, to.ldo, rows);
}
template <Gelu form>
FSDP_INLINE void foresee(const StoreGelu<form>&, std::size_t, std::size_t, std::size_t, std::size_t) {}
template <Gelu form>
FSDP_INLINE void foresee(const StoreGeluGradient<form>& to, std::size_t row, std::size_t column, std::size_t rows,
                         std::size_t) {
  ask_for(to.pre + row * to.n + column, to.n, rows);
}

/// Stores rows x columns of sums[32,32] to the result at (row, column).
template <class Out>
FSDP_INLINE void finish(const StoreSums<Out>& to, std::size_t row, std::size_t column, const float* sums, std::size_t rows,
                        std::size_t columns) {
  Out* out = to.out + row * to.ldo + column;
  if (to.write == Write::add) {
    for (std::size_t r = 0; r < rows; ++r, out += to.ldo, sums += side)
      store(out, load(out, columns) + load(sums, side), columns, false);
  } else {
    const bool past_caches = whole_lines(out, to.ldo, columns);
    for (std::size_t r = 0; r < rows; ++r, out += to.ldo, sums += side) store(out, load(sums, side), columns, past_caches);
  }
}
template <Gelu form>
FSDP_INLINE void finish(const StoreGelu<form>& to, std::size_t row, std::size_t column, const float* sums, std::size_t rows,
                        std::size_t columns) {
  bf16 *out = to.out + row * to.n + column, *pre = to.pre + row * to.n + column;
  const bool past_caches = whole_lines(out, to.n, columns) && whole_lines(pre, to.n, columns);
  const Row bias = to.bias ? load(to.bias + column, columns) : Row{};
  for (std::size_t r = 0; r < rows; ++r, out += to.n, pre += to.n, sums += side) {
    // Rounded as stored, because the backward pass and recomputation use the rounded value.
    const Row x = each(load(sums, side) + bias, [](float value) FSDP_LANE { return static_cast<float>(bf16(value)); });
    store(pre, x, columns, past_caches);
    store(out, each(x, [](float value) FSDP_LANE { return gelu<form>(value); }), columns, past_caches);
  }
}
template <Gelu form>
FSDP_INLINE void finish(const StoreGeluGradient<form>& to, std::size_t row, std::size_t column, const float* sums,
                        std::size_t rows, std::size_t columns) {
  bf16* d_pre = to.d_pre + row * to.n + column;
  const bf16* pre = to.pre + row * to.n + column;
  const bool past_caches = whole_lines(d_pre, to.n, columns);
  for (std::size_t r = 0; r < rows; ++r, d_pre += to.n, pre += to.n, sums += side) {
    const Row d = load(sums, side),
              slope = each(load(pre, columns), [](float value) FSDP_LANE { return gelu_slope<form>(value); });
    store(d_pre, d * slope, columns, past_caches);
  }
}

}  // namespace tile_parts

template <class End>
FSDP_INLINE void tile_gemm(const TileProduct<End>& p, std::byte* workspace) {
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
        const std::size_t rows_at_once = even_part(bottom - top, TileBlocks::left_numbers / (steps * step) * side, side);
        for (std::size_t row = top; row < bottom; row += rows_at_once) {
          const std::size_t rows = bottom - row < rows_at_once ? bottom - row : rows_at_once;
          const PackedBlock left{left_memory, (rows + side - 1) / side, steps, stretch};
          if (p.trans_a == Trans::no)
            left.fill<Operand::left, Trans::no>(p.a + row * p.lda + l, p.lda, rows, depth);
          else
            left.fill<Operand::left, Trans::yes>(p.a + l * p.lda + row, p.lda, rows, depth);
          for (std::size_t j = 0; j < right.panels; ++j) {
            float* const own_sums = depth == p.k ? sums : sums + (j * TileBlocks::rows_of_sums + row - top) * side;
            const std::size_t width = columns - j * side < side ? columns - j * side : side;
            const auto height = [&](std::size_t i) FSDP_LANE { return rows - i * side < side ? rows - i * side : side; };
            for (std::size_t s = 0; s < steps; s += stretch) {
              const bool last = l + depth == p.k && s + stretch >= steps;
              if (last) foresee(p.finish, row, column + j * side, height(0), width);
              for (std::size_t i = 0; i < left.panels; ++i) {
                if (last && i + 1 < left.panels)
                  foresee(p.finish, row + (i + 1) * side, column + j * side, height(i + 1), width);
                multiply(left.length(s), left.at(s, i), right.at(s, j), own_sums + i * step, side,
                         l + s > 0 ? Write::add : Write::overwrite);
                if (last) finish(p.finish, row + i * side, column + j * side, own_sums + i * step, height(i), width);
              }
            }
          }
        }
      }
    }
  }
  finish_stores();
}

template <int level, class End>
void run_tile_product(const TileProduct<End>& product, std::byte* workspace) {
  tile_gemm(product, workspace);
}
#define FSDP_INSTANTIATE_TILE_PRODUCTS(LEVEL)                                                           \
  template void run_tile_product<LEVEL>(const TileProduct<StoreSums<bf16>>&, std::byte*);               \
  template void run_tile_product<LEVEL>(const TileProduct<StoreSums<float>>&, std::byte*);              \
  template void run_tile_product<LEVEL>(const TileProduct<StoreGelu<Gelu::tanh>>&, std::byte*);         \
  template void run_tile_product<LEVEL>(const TileProduct<StoreGelu<Gelu::erf>>&, std::byte*);          \
  template void run_tile_product<LEVEL>(const TileProduct<StoreGeluGradient<Gelu::tanh>>&, std::byte*); \
  template void run_tile_product<LEVEL>(const TileProduct<StoreGeluGradient<Gelu::erf>>&, std::byte*);

}  // namespace fsdp::kernels
