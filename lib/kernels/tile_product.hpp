// What gemm() asks of AMX. Private to kernels/.
#pragma once

#include <cstddef>

#include "kernels/element.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// Columns [begin, end) of out[m,n] (=, +=) op(a)[m,k] op(b)[k,n], as in gemm(). begin is a multiple of 32.
template <class Out>
struct TileProduct {
  Trans trans_a, trans_b;
  std::size_t m, k, begin, end;
  const bf16* a;
  std::size_t lda;
  const bf16* b;
  std::size_t ldb;
  Out* out;
  std::size_t ldo;
  Write write;
};

/// How a product is cut, so that what it works on stays in the second-level cache: at most `depth` of k, `rows` of a and
/// `columns` of b at once, whose sums are held for `rows_of_sums` rows.
struct TileBlocks {
  static constexpr std::size_t depth = 1024, left_numbers = 384 * 1024, columns = 1024, rows_of_sums = 1024;
  /// For one thread.
  static constexpr std::size_t workspace_bytes =
      sizeof(bf16) * (left_numbers + depth * columns) + sizeof(float) * rows_of_sums * columns;
};

/// Defined in rows/amx.cpp, for machines where has_tiles(). `workspace`: TileBlocks::workspace_bytes, on a multiple of 64
/// bytes.
template <int level, class Out>
void run_tile_product(const TileProduct<Out>& product, std::byte* workspace);

}  // namespace fsdp::kernels
