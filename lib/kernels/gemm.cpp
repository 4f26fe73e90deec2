// GEMM on the CPU. bf16 products that are not small run on the processor's instructions for tiles of bf16 numbers, if it has
// them (rows/tile_gemm.hpp). Products of a few rows, which occur in text generation, have our own kernel (rows/skinny.hpp). All
// others run on a library (gemm_library.hpp), after a conversion to fp32 if the library does not multiply the type. The choice
// depends only on the shape, so that a result does not depend on timing.
#include <omp.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/gemm_library.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/skinny.hpp"
#include "kernels/tile_product.hpp"
#include "tensor/shape.hpp"

namespace fsdp::kernels {

namespace {

/// The operands of a product of dense matrices that overwrites `out`.
Operands dense(Trans trans_b, std::size_t m, std::size_t n, std::size_t k) {
  return {Trans::no, trans_b, m, n, k, k, trans_b == Trans::yes ? k : n, n, Write::overwrite};
}

/// Returns true if tiles are the fastest. For smaller products a library that multiplies bf16 is faster, because it packs less.
bool worth_tiles(const Operands& o) {
  const std::size_t least = library_multiplies_bf16() ? 64 : 1;
  return o.m >= least && o.n >= least && o.k >= least && has_tiles();
}

/// The packing workspaces of this rank's `threads` threads, one after another.
std::byte* tile_workspace(std::size_t threads) {
  thread_local Buffer workspace;
  if (workspace.bytes() < threads * TileBlocks::workspace_bytes)
    workspace = allocate_host(threads * TileBlocks::workspace_bytes);
  return workspace.data();
}

/// Runs a product on tiles; each thread computes a range of columns.
template <class End>
void multiply_by_tiles(const Operands& o, const bf16* a, const bf16* b, const End& end_of_product) {
  const std::size_t most = static_cast<std::size_t>(omp_in_parallel() ? 1 : omp_get_max_threads()), panels = (o.n + 31) / 32;
  std::byte* const workspace = tile_workspace(most);
#pragma omp parallel
  {
    const auto threads = static_cast<std::size_t>(omp_get_num_threads()), own = static_cast<std::size_t>(omp_get_thread_num());
    const std::size_t begin = panels * own / threads * 32, end = std::min(o.n, panels * (own + 1) / threads * 32);
    if (begin < end)
      run_tile_product<tile_level>(
          TileProduct<End>{o.trans_a, o.trans_b, o.m, o.k, begin, end, a, o.lda, b, o.ldb, end_of_product},
          workspace + own * TileBlocks::workspace_bytes);
  }
}

/// Converts the operands to dense fp32 matrices in this thread's memory and multiplies in fp32. If `out` is not fp32, the
/// result is converted back.
template <class E, class Out>
void multiply_in_fp32(Stream& stream, Operands o, const E* a, const E* b, Out* out) {
  thread_local std::vector<float> memory;
  const auto rows_of_a = o.trans_a == Trans::yes ? o.k : o.m, columns_of_a = o.trans_a == Trans::yes ? o.m : o.k;
  const auto rows_of_b = o.trans_b == Trans::yes ? o.n : o.k, columns_of_b = o.trans_b == Trans::yes ? o.k : o.n;
  const std::size_t numel = rows_of_a * columns_of_a + rows_of_b * columns_of_b + (std::is_same_v<Out, float> ? 0 : o.m * o.n);
  if (memory.size() < numel) memory.resize(numel);
  float *const wide_a = memory.data(), *const wide_b = wide_a + rows_of_a * columns_of_a,
               *const wide_out = wide_b + rows_of_b * columns_of_b;
  const auto copy = [&](auto* to, std::size_t to_stride, const auto* from, std::size_t from_stride, std::size_t rows,
                        std::size_t columns) {
    if (to_stride == columns && from_stride == columns) return convert(stream, to, from, rows * columns);
    for (std::size_t r = 0; r < rows; ++r) convert(stream, to + r * to_stride, from + r * from_stride, columns);
  };
  copy(wide_a, columns_of_a, a, o.lda, rows_of_a, columns_of_a);
  copy(wide_b, columns_of_b, b, o.ldb, rows_of_b, columns_of_b);
  o.lda = columns_of_a, o.ldb = columns_of_b;
  if constexpr (std::is_same_v<Out, float>) {
    library_multiply(o, wide_a, wide_b, out);
  } else {
    if (o.write == Write::add) copy(wide_out, o.n, out, o.ldo, o.m, o.n);
    const std::size_t stride = std::exchange(o.ldo, o.n);
    library_multiply(o, wide_a, wide_b, wide_out);
    copy(out, stride, wide_out, o.n, o.m, o.n);
  }
}

/// Returns true if the product has so few rows that rows/skinny.hpp is faster than oneDNN, because reading b is most of the
/// work. The largest number of rows is:
///   8 if 16-bit numbers are multiplied natively;
///   64 in fp32 with b transposed. On a core of an AMD EPYC with AVX-512 (peak 118 GFLOP/s) and b[1536,576] not in cache,
///     products of 12, 16, 32 and 64 rows reach 86, 85, 93 and 95 GFLOP/s; sgemm reaches 53, 30, 48 and 67, and is faster for
///     128 rows;
///   12 in fp32 with b not transposed. A step of GPT-2 (124 M) for 10 and 12 texts takes 47 to 57 ms, and 59 to 62 ms by sgemm;
///     for 16 texts both take 70 ms.
bool is_skinny(DType type, const Operands& o) {
  const bool in_fp32 = type == DType::f32 || !multiplies(type);
  return o.trans_a == Trans::no && o.k > 0 && o.m <= (!in_fp32 ? 8 : o.trans_b == Trans::yes ? 64 : 12);
}

/// Runs a product of few rows, after converting the left operand to dense fp32 in this thread's memory if necessary.
template <class E, class Out>
void multiply_skinny(Stream& stream, const Operands& o, const E* a, const E* b, Out* out) {
  thread_local std::vector<float> memory;
  const float* left = nullptr;
  if constexpr (std::is_same_v<E, float>)
    if (o.lda == o.k) left = a;
  if (!left) {
    if (memory.size() < o.m * o.k) memory.resize(o.m * o.k);
    for (std::size_t r = 0; r < o.m; ++r) convert(stream, memory.data() + r * o.k, a + r * o.lda, o.k);
    left = memory.data();
  }
  const auto run = [&]<bool transposed>() {
    using Body = FewRowsProduct<E, Out, transposed>;
    const auto threads = static_cast<std::size_t>(omp_in_parallel() ? 1 : omp_get_max_threads());
    // All threads get the same number of parts. If b is not transposed, a part has a multiple of 16 columns (whole registers).
    const std::size_t parts = round_up((o.n + Body::most_columns - 1) / Body::most_columns, threads);
    const std::size_t block =
        transposed ? Body::most_columns : std::min(Body::most_columns, round_up((o.n + parts - 1) / parts, 16));
    launch(stream, Body{left, o.m, o.n, o.k, b, o.ldb, out, o.ldo, o.write == Write::add, block}, (o.n + block - 1) / block);
  };
  if (o.trans_b == Trans::yes)
    run.template operator()<true>();
  else
    run.template operator()<false>();
}

}  // namespace

bool multiplies(DType type) {
  return type == DType::f32 || (type == DType::bf16 && (library_multiplies_bf16() || has_tiles()));
}

template <class E, class Out>
void gemm(Stream& stream, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
          std::size_t lda, const E* b, std::size_t ldb, Out* out, std::size_t ldo, Write write) {
  if (m == 0 || n == 0) return;
  if (const DeviceKernels* device = stream.kernels())
    return device->gemm(stream, {dtype_of<E>, dtype_of<Out>, trans_a, trans_b, m, n, k, a, lda, b, ldb, out, ldo, write});
  const AddTime timed(stream.times.gemm);
  const Operands operands = {trans_a, trans_b, m, n, k, lda, ldb, ldo, write};
  if (is_skinny(dtype_of<E>, operands)) return multiply_skinny(stream, operands, a, b, out);
  if constexpr (std::is_same_v<E, float>) {
    library_multiply(operands, a, b, out);
  } else {
    if constexpr (std::is_same_v<E, bf16>) {
      if (worth_tiles(operands)) return multiply_by_tiles(operands, a, b, StoreSums<Out>{out, ldo, write});
      if (library_multiplies_bf16()) return library_multiply(operands, a, b, out);
    }
    multiply_in_fp32(stream, operands, a, b, out);
  }
}

template <class E, class Out>
bool gemm_with_epilogue(Stream& stream, const Epilogue& epilogue, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n,
                        std::size_t k, const E* a, std::size_t lda, const E* b, std::size_t ldb, Out* out, std::size_t ldo,
                        Write write) {
  const DeviceKernels* const device = stream.kernels();
  const Product product = {dtype_of<E>, dtype_of<Out>, trans_a, trans_b, m, n, k, a, lda, b, ldb, out, ldo, write, epilogue};
  if (!device || !device->takes(stream, product)) return false;
  device->gemm(stream, product);
  return true;
}

#define FSDP_INSTANTIATE(E, Out)                                                                                            \
  template void gemm(Stream&, Trans, Trans, std::size_t, std::size_t, std::size_t, const E*, std::size_t, const E*,         \
                     std::size_t, Out*, std::size_t, Write);                                                                \
  template bool gemm_with_epilogue(Stream&, const Epilogue&, Trans, Trans, std::size_t, std::size_t, std::size_t, const E*, \
                                   std::size_t, const E*, std::size_t, Out*, std::size_t, Write);
FSDP_INSTANTIATE(float, float)
FSDP_INSTANTIATE(bf16, bf16)
FSDP_INSTANTIATE(bf16, float)
FSDP_INSTANTIATE(f16, f16)
FSDP_INSTANTIATE(f16, float)

template <class E>
void gemm_bias_gelu(Stream& stream, Gelu form, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
                    const E* b, Nullable<E> bias, E* pre, E* out) {
  const Operands o = dense(trans_b, m, n, k);
  if constexpr (std::is_same_v<E, bf16>)
    if (!stream.kernels() && worth_tiles(o)) {
      const AddTime timed(stream.times.gemm);
      if (form == Gelu::tanh) return multiply_by_tiles(o, a, b, StoreGelu<Gelu::tanh>{out, pre, n, bias});
      return multiply_by_tiles(o, a, b, StoreGelu<Gelu::erf>{out, pre, n, bias});
    }
  gemm(stream, o.trans_a, o.trans_b, m, n, k, a, o.lda, b, o.ldb, pre, o.ldo, o.write);
  bias_gelu_forward(stream, form, out, pre, bias, m, n);
}

template <class E>
void gemm_gelu_backward(Stream& stream, Gelu form, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
                        const E* b, const E* pre, E* d_pre) {
  const Operands o = dense(trans_b, m, n, k);
  if constexpr (std::is_same_v<E, bf16>)
    if (!stream.kernels() && worth_tiles(o)) {
      const AddTime timed(stream.times.gemm);
      if (form == Gelu::tanh) return multiply_by_tiles(o, a, b, StoreGeluGradient<Gelu::tanh>{d_pre, pre, n});
      return multiply_by_tiles(o, a, b, StoreGeluGradient<Gelu::erf>{d_pre, pre, n});
    }
  gemm(stream, o.trans_a, o.trans_b, m, n, k, a, o.lda, b, o.ldb, d_pre, o.ldo, o.write);
  gelu_backward(stream, form, d_pre, d_pre, pre, m * n);
}

#undef FSDP_INSTANTIATE
#define FSDP_INSTANTIATE(E)                                                                                                   \
  template void gemm_bias_gelu(Stream&, Gelu, Trans, std::size_t, std::size_t, std::size_t, const E*, const E*, Nullable<E>,  \
                               E*, E*);                                                                                       \
  template void gemm_gelu_backward(Stream&, Gelu, Trans, std::size_t, std::size_t, std::size_t, const E*, const E*, const E*, \
                                   E*);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

std::string gemm_description() {
  const std::string_view bf16_by = !multiplies(DType::bf16)     ? "conversion to fp32"
                                   : !library_multiplies_bf16() ? tile_instructions
                                   : library_allows_amx()       ? "AMX"
                                                                : "AVX512_BF16";
  return format("{} (bf16 by {}, fp16 by conversion to fp32)", library_description(), bf16_by);
}

}  // namespace fsdp::kernels
