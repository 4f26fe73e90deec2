// GEMM on the CPU. bf16 products that are not small run on AMX's tiles (rows/tile_gemm.hpp) if the machine has AMX. Products of
// a few rows, which occur in text generation, have our own kernel (rows/skinny.hpp). All others run on oneDNN's gemm for
// the type, or on a cached matmul primitive for shapes where matmul is faster on one thread. The choice depends only on the
// shape and on whether several threads share the product, so that a result does not depend on timing. GFLOP/s of sgemm against
// matmul, measured with oneDNN 2.6.3 on one AVX-512 core (Cascade Lake, peak about 150 GFLOP/s):
//   out[1024,3072] = x[1024,768] w[768,3072]        101-119 against  45    plain right-hand sides of 2304 or 3072 columns
//   out[1024,768] = x[1024,3072] w[768,3072]^T      123     against 120
//   out[1024,256] = x[1024,1024] w[256,1024]^T       77     against 121    few columns, transposed right-hand side
//   out[256,256] = x[256,1024] w[256,1024]^T        116     against 131
//   dw[1024,768] = x[3072,1024]^T dy[3072,768]       76     against 101    transposed left side, 768 to 1024 rows
//   dw[1024,256] = x[1024,1024]^T dy[1024,256]       70     against 100
//   dw[3072,768] = x[1024,3072]^T dy[1024,768]      119     against  96
//   dw[256,1024] = x[512,256]^T dy[512,1024]        117     against 112
// and on one core of an AMD EPYC (AVX-512, peak 118 GFLOP/s), with w not in cache, as when a prompt is read:
//   out[65,4864] = x[65,896] w[4864,896]^T           66     against  83    products of fewer rows have our own kernel
//   out[128,1536] = x[128,576] w[1536,576]^T         81     against 100
//   out[256,1536] = x[256,576] w[1536,576]^T         94     against 107
//   out[256,8192] = x[256,2048] w[8192,2048]^T       93     against 100
//   out[512,1536] = x[512,576] w[1536,576]^T        103     against 107
//   out[1024,3072] = x[1024,768] w[3072,768]^T      106     against 101
#include <omp.h>
#include <dnnl.hpp>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/skinny.hpp"
#include "kernels/tile_product.hpp"
#include "tensor/shape.hpp"

// oneDNN 2 exports this function but does not declare it in its headers.
extern "C" dnnl_status_t dnnl_gemm_bf16bf16f32(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                               float alpha, const std::uint16_t* a, dnnl_dim_t lda, const std::uint16_t* b,
                                               dnnl_dim_t ldb, float beta, float* out, dnnl_dim_t ldo);

namespace fsdp::kernels {

namespace {

/// Returns true if matmul is faster than sgemm, by the measurements above. Small products use sgemm, which has no look-up of
/// primitives. Products on several threads also use sgemm: for them matmul takes up to 60 MB of scratch, and its speed was not
/// measured.
bool matmul_is_faster(Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, std::size_t lda,
                      std::size_t ldb, std::size_t ldo) {
  // matmul chooses a slow implementation for matrices with gaps between their rows.
  const bool dense = lda == (trans_a == Trans::yes ? m : k) && ldb == (trans_b == Trans::yes ? k : n) && ldo == n;
  if (!dense || n < 128 || k < 128 || (!omp_in_parallel() && omp_get_max_threads() > 1)) return false;
  if (trans_a == Trans::no && trans_b == Trans::yes) return n <= 256 || m <= 512;
  if (trans_a == Trans::yes && trans_b == Trans::no) return m >= 768 && m <= 1024 && n <= 1024;
  return false;
}

/// A matmul primitive and the layouts of its operands and scratchpad. Each thread has its own primitive, because a primitive
/// with a scratchpad must not be executed twice at the same time, and ranks may be threads.
struct Matmul {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, out, scratchpad;
};

/// The key of a primitive in the cache is a product's types, shapes and strides.
struct MatmulKey {
  DType type, out_type;
  Trans trans_a, trans_b;
  Write write;
  std::size_t m, n, k, lda, ldb, ldo;
  auto operator<=>(const MatmulKey&) const = default;
};

dnnl::memory::data_type dnnl_type(DType type) {
  return type == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

struct MatmulCache {
  static constexpr std::size_t most = 256;  // a model has about a dozen shapes; the limit is for callers with many more shapes

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<MatmulKey, Matmul> primitives;
  Buffer scratchpad;

  const Matmul& find(const MatmulKey& key) {
    const auto found = primitives.find(key);
    if (found != primitives.end()) return found->second;
    if (primitives.size() == most) primitives.clear();
    const auto matrix = [](std::size_t rows, std::size_t columns, DType type, std::size_t stride, Trans trans) {
      const auto r = narrow<std::int64_t>(rows), c = narrow<std::int64_t>(columns), s = narrow<std::int64_t>(stride);
      return dnnl::memory::desc({r, c}, dnnl_type(type),
                                trans == Trans::yes ? dnnl::memory::dims{1, s} : dnnl::memory::dims{s, 1});
    };
    const auto a = matrix(key.m, key.k, key.type, key.lda, key.trans_a),
               b = matrix(key.k, key.n, key.type, key.ldb, key.trans_b),
               out = matrix(key.m, key.n, key.out_type, key.ldo, Trans::no);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.write == Write::add) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    const dnnl::matmul::primitive_desc description({a, b, out}, attributes, engine);
    return primitives.emplace(key, Matmul{dnnl::matmul(description), a, b, out, description.scratchpad_desc()}).first->second;
  }
};

void matmul(const MatmulKey& key, const void* a, const void* b, void* out) {
  thread_local MatmulCache cache;
  try {
    const Matmul& found = cache.find(key);
    if (cache.scratchpad.bytes() < found.scratchpad.get_size()) cache.scratchpad = allocate_host(found.scratchpad.get_size());
    auto memory = [&](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, cache.engine, const_cast<void*>(data));
    };
    found.primitive.execute(cache.stream, {{DNNL_ARG_SRC, memory(found.a, a)},
                                           {DNNL_ARG_WEIGHTS, memory(found.b, b)},
                                           {DNNL_ARG_DST, memory(found.out, out)},
                                           {DNNL_ARG_SCRATCHPAD, memory(found.scratchpad, cache.scratchpad.data())}});
  } catch (const dnnl::error& error) {
    throw CallError("dnnl::matmul", std::string(error.what()) + ", status " + std::to_string(static_cast<int>(error.status)));
  }
}

struct Operands {
  Trans trans_a, trans_b;
  std::size_t m, n, k, lda, ldb, ldo;
  Write write;
};

/// The operands of a product of dense matrices that overwrites `out`.
Operands dense(Trans trans_b, std::size_t m, std::size_t n, std::size_t k) {
  return {Trans::no, trans_b, m, n, k, k, trans_b == Trans::yes ? k : n, n, Write::overwrite};
}

char letter(Trans trans) { return trans == Trans::yes ? 'T' : 'N'; }

void check_status(dnnl_status_t status, const char* call) {
  if (status != dnnl_success) throw CallError(call, "status " + std::to_string(static_cast<int>(status)));
}

void multiply(const Operands& o, const float* a, const float* b, float* out) {
  if (matmul_is_faster(o.trans_a, o.trans_b, o.m, o.n, o.k, o.lda, o.ldb, o.ldo))
    return matmul({DType::f32, DType::f32, o.trans_a, o.trans_b, o.write, o.m, o.n, o.k, o.lda, o.ldb, o.ldo}, a, b, out);
  check_status(dnnl_sgemm(letter(o.trans_a), letter(o.trans_b), narrow<dnnl_dim_t>(o.m), narrow<dnnl_dim_t>(o.n),
                          narrow<dnnl_dim_t>(o.k), 1.0f, a, narrow<dnnl_dim_t>(o.lda), b, narrow<dnnl_dim_t>(o.ldb),
                          o.write == Write::add ? 1.0f : 0.0f, out, narrow<dnnl_dim_t>(o.ldo)),
               "dnnl_sgemm");
}

/// Returns true if AMX is faster than oneDNN. For smaller products oneDNN is faster, because it packs less.
bool worth_tiles(const Operands& o) { return o.m >= 64 && o.n >= 64 && o.k >= 64 && has_tiles(); }

/// The packing workspaces of this rank's `threads` threads, one after another.
std::byte* tile_workspace(std::size_t threads) {
  thread_local Buffer workspace;
  if (workspace.bytes() < threads * TileBlocks::workspace_bytes)
    workspace = allocate_host(threads * TileBlocks::workspace_bytes);
  return workspace.data();
}

/// Runs a product on AMX's tiles; each thread computes a range of columns.
template <class End>
void multiply_by_tiles(const Operands& o, const bf16* a, const bf16* b, const End& end_of_product) {
  if constexpr (builds_tile_kernels) {
    const std::size_t most = static_cast<std::size_t>(omp_in_parallel() ? 1 : omp_get_max_threads()), panels = (o.n + 31) / 32;
    std::byte* const workspace = tile_workspace(most);
#pragma omp parallel
    {
      const auto threads = static_cast<std::size_t>(omp_get_num_threads()),
                 own = static_cast<std::size_t>(omp_get_thread_num());
      const std::size_t begin = panels * own / threads * 32, end = std::min(o.n, panels * (own + 1) / threads * 32);
      if (begin < end)
        run_tile_product<5>(TileProduct<End>{o.trans_a, o.trans_b, o.m, o.k, begin, end, a, o.lda, b, o.ldb, end_of_product},
                            workspace + own * TileBlocks::workspace_bytes);
    }
  }
}

template <class Out>
void multiply(const Operands& o, const bf16* a, const bf16* b, Out* out) {
  if (worth_tiles(o)) return multiply_by_tiles(o, a, b, StoreSums<Out>{out, o.ldo, o.write});
  // oneDNN's bf16 gemm, which can only write fp32, is faster than matmul if `a` is transposed or the result is added to `out`.
  if constexpr (std::is_same_v<Out, float>)
    if (o.trans_a == Trans::yes || o.write == Write::add)
      return check_status(
          dnnl_gemm_bf16bf16f32(letter(o.trans_a), letter(o.trans_b), narrow<dnnl_dim_t>(o.m), narrow<dnnl_dim_t>(o.n),
                                narrow<dnnl_dim_t>(o.k), 1.0f, &a->bits, narrow<dnnl_dim_t>(o.lda), &b->bits,
                                narrow<dnnl_dim_t>(o.ldb), o.write == Write::add ? 1.0f : 0.0f, out, narrow<dnnl_dim_t>(o.ldo)),
          "dnnl_gemm_bf16bf16f32");
  matmul({DType::bf16, dtype_of<Out>, o.trans_a, o.trans_b, o.write, o.m, o.n, o.k, o.lda, o.ldb, o.ldo}, a, b, out);
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
    multiply(o, wide_a, wide_b, out);
  } else {
    if (o.write == Write::add) copy(wide_out, o.n, out, o.ldo, o.m, o.n);
    const std::size_t stride = std::exchange(o.ldo, o.n);
    multiply(o, wide_a, wide_b, wide_out);
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
  return type == DType::f32 || (type == DType::bf16 && dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16);
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
  if constexpr (std::is_same_v<E, f16>) {
    multiply_in_fp32(stream, operands, a, b, out);
  } else {
    if (multiplies(dtype_of<E>)) return multiply(operands, a, b, out);
    if constexpr (std::is_same_v<E, bf16>) multiply_in_fp32(stream, operands, a, b, out);
  }
}
#define FSDP_INSTANTIATE(E, Out)                                                                                    \
  template void gemm(Stream&, Trans, Trans, std::size_t, std::size_t, std::size_t, const E*, std::size_t, const E*, \
                     std::size_t, Out*, std::size_t, Write);
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

namespace {

std::string_view name_of(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "an instruction set below SSE4.1";
  }
}

}  // namespace

std::string gemm_description() {
  const dnnl_version_t* version = dnnl_version();
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  const std::string_view bf16_by = !multiplies(DType::bf16)              ? "conversion to fp32"
                                   : isa >= dnnl_cpu_isa_avx512_core_amx ? "AMX"
                                                                         : "AVX512_BF16";
  return format("oneDNN {}.{}.{}, {} (bf16 by {}, fp16 by conversion to fp32)", version->major, version->minor, version->patch,
                name_of(isa), bf16_by);
}

}  // namespace fsdp::kernels
