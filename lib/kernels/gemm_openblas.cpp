// OpenBLAS's products of matrices. Each product is divided among OpenMP's threads here, and each thread calls OpenBLAS for its
// part, for two reasons: the parts depend only on the shape and the number of threads, so that a result does not depend on
// timing, and builds of OpenBLAS with OpenMP and with threads of their own do the same. A serial build is refused: its memory
// for packed blocks has no lock, and if several threads call it at once, results are wrong (seen with Debian's version 0.3.21).
//
// OpenBLAS has memory for packed blocks per call that runs at the same time. It allocates this memory at the first call and
// keeps it.
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "kernels/gemm_library.hpp"
#include "tensor/shape.hpp"

namespace fsdp::kernels {

namespace {

/// The number of ranges of rows of a grid of `parts` parts of a result: of all that divide `parts`, the one for which a part
/// reads the least of both operands.
std::size_t rows_of_grid(std::size_t m, std::size_t n, std::size_t parts) {
  std::size_t best = 1;
  const auto read = [&](std::size_t rows) { return m / rows + n / (parts / rows); };
  for (std::size_t rows = 2; rows <= parts; ++rows)
    if (parts % rows == 0 && read(rows) < read(best)) best = rows;
  return best;
}

/// The beginning of part `i` of n elements that are divided into `parts` parts of whole registers.
std::size_t begin_of(std::size_t i, std::size_t n, std::size_t parts) {
  constexpr std::size_t grain = 16;
  return std::min(n, (n + grain - 1) / grain * i / parts * grain);
}

CBLAS_TRANSPOSE transposed(Trans trans) { return trans == Trans::yes ? CblasTrans : CblasNoTrans; }

void multiply_part(const Operands& o, const float* a, const float* b, float* out) {
  if (o.m == 0 || o.n == 0) return;
  const auto stride = [](std::size_t elements) { return narrow<blasint>(std::max<std::size_t>(elements, 1)); };
  cblas_sgemm(CblasRowMajor, transposed(o.trans_a), transposed(o.trans_b), narrow<blasint>(o.m), narrow<blasint>(o.n),
              narrow<blasint>(o.k), 1.0f, a, stride(o.lda), b, stride(o.ldb), o.write == Write::add ? 1.0f : 0.0f, out,
              stride(o.ldo));
}

/// Lets each call compute in its own thread. Throws UserError if several threads cannot call this build of OpenBLAS at once.
bool prepare_library() {
  if (openblas_get_parallel() == OPENBLAS_SEQUENTIAL)
    throw UserError(
        "the OpenBLAS that was loaded is a serial build (if several threads use it at once, its results are wrong); install "
        "one "
        "with threads, such as Debian's libopenblas0-pthread");
  openblas_set_num_threads(1);
  return true;
}

}  // namespace

void library_multiply(const Operands& o, const float* a, const float* b, float* out) {
  [[maybe_unused]] static const bool is_ready = prepare_library();
  const std::size_t parts = static_cast<std::size_t>(omp_in_parallel() ? 1 : omp_get_max_threads()),
                    row_parts = rows_of_grid(o.m, o.n, parts), column_parts = parts / row_parts;
#pragma omp parallel for schedule(static) if (parts > 1)
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t row = begin_of(part / column_parts, o.m, row_parts),
                      column = begin_of(part % column_parts, o.n, column_parts);
    Operands own = o;
    own.m = begin_of(part / column_parts + 1, o.m, row_parts) - row;
    own.n = begin_of(part % column_parts + 1, o.n, column_parts) - column;
    multiply_part(own, a + row * (o.trans_a == Trans::yes ? 1 : o.lda), b + column * (o.trans_b == Trans::yes ? o.ldb : 1),
                  out + row * o.ldo + column);
  }
}

void library_multiply(const Operands&, const bf16*, const bf16*, float*) { expect(false, "OpenBLAS multiplies only fp32"); }
void library_multiply(const Operands&, const bf16*, const bf16*, bf16*) { expect(false, "OpenBLAS multiplies only fp32"); }
bool library_multiplies_bf16() { return false; }
bool library_allows_amx() { return true; }

/// Measured with version 0.3.21: blocks 640 long along k, of at most 4096 rows and 384 columns.
std::size_t library_workspace_bytes(std::size_t m, std::size_t n, std::size_t threads) {
  return threads * sizeof(float) * 640 * (std::min<std::size_t>(m, 4096) + std::min<std::size_t>(n, 384));
}

std::string library_description() {
  prepare_library();                                      // a run prints this at its start, so that it does not fail later
  const std::string_view config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  return format("{}, {}", config.substr(0, config.find(' ', config.find(' ') + 1)), openblas_get_corename());
}

}  // namespace fsdp::kernels
