// The interface between gemm() and the kernels for tiles of bf16 numbers (AMX, BFMMLA). Private to kernels/.
#pragma once

#include <cstddef>

#include "base/element.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// Columns [begin, end) of op(a)[m,k] op(b)[k,n], as in gemm(); `finish` defines how the sums are stored. begin is a multiple
/// of 32.
template <class End>
struct TileProduct {
  Trans trans_a, trans_b;
  std::size_t m, k, begin, end;
  const bf16* a;
  std::size_t lda;
  const bf16* b;
  std::size_t ldb;
  End finish;
};

/// The ways in which gemm(), gemm_bias_gelu() and gemm_gelu_backward() store the sums.
template <class Out>
struct StoreSums {
  Out* out;
  std::size_t ldo;
  Write write;
};
template <Gelu form>
struct StoreGelu {
  bf16 *out, *pre;
  std::size_t n;
  const bf16* bias;
};
template <Gelu form>
struct StoreGeluGradient {
  bf16* d_pre;
  const bf16* pre;
  std::size_t n;
};

/// The blocks into which a product is divided, so that its operands stay in the second-level cache. A block has at most `depth`
/// elements along k, `left_numbers` elements of a and `columns` columns of b. The workspace has sums for `rows_of_sums` rows.
struct TileBlocks {
  static constexpr std::size_t depth = 1024, left_numbers = 384 * 1024, columns = 1024, rows_of_sums = 1024;
  /// The size of the workspace of one thread.
  static constexpr std::size_t workspace_bytes =
      sizeof(bf16) * (left_numbers + depth * columns) + sizeof(float) * rows_of_sums * columns;
};

/// Defined in rows/amx.cpp and rows/bfmmla.cpp, for machines on which has_tiles() returns true. `workspace` has
/// TileBlocks::workspace_bytes bytes, aligned to 64 bytes.
template <int level, class End>
void run_tile_product(const TileProduct<End>& product, std::byte* workspace);

}  // namespace fsdp::kernels
