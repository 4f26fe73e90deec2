// GEMM on oneDNN: dnnl_sgemm, or on one thread a cached matmul primitive for the shapes where that is faster. Which one is a
// function of the shape and of whether several threads share it, so that a result does not depend on timing. Measured with
// oneDNN 2.6.3 on one AVX-512 core (Cascade Lake, peak about 150 GFLOP/s), sgemm against matmul:
//   out[1024,3072] = x[1024,768] w[768,3072]        101-119 against  45    plain right-hand sides of 2304 or 3072 columns
//   out[1024,768] = x[1024,3072] w[768,3072]^T      123     against 120
//   out[1024,256] = x[1024,1024] w[256,1024]^T       77     against 121    few columns, transposed right-hand side
//   out[256,256] = x[256,1024] w[256,1024]^T        116     against 131
//   dw[1024,768] = x[3072,1024]^T dy[3072,768]       76     against 101    transposed left side, 768 to 1024 rows
//   dw[1024,256] = x[1024,1024]^T dy[1024,256]       70     against 100
//   dw[3072,768] = x[1024,3072]^T dy[1024,768]      119     against  96
//   dw[256,1024] = x[512,256]^T dy[512,1024]        117     against 112
#include <emmintrin.h>
#include <omp.h>
#include <xmmintrin.h>
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
#include "kernels/kernels.hpp"

// Exported by oneDNN 2 and left out of its headers.
extern "C" dnnl_status_t dnnl_gemm_bf16bf16f32(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                               float alpha, const std::uint16_t* a, dnnl_dim_t lda, const std::uint16_t* b,
                                               dnnl_dim_t ldb, float beta, float* out, dnnl_dim_t ldo);

namespace fsdp::kernels {

namespace {

/// The measurements above as a rule. Small products go to sgemm, which has no look-up; so do products on several threads, for
/// which matmul takes up to 60 MB of scratch, and nothing was measured.
bool matmul_is_faster(Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, std::size_t lda,
                      std::size_t ldb, std::size_t ldo) {
  // With rows further apart than their length matmul falls to a slow implementation.
  const bool dense = lda == (trans_a == Trans::yes ? m : k) && ldb == (trans_b == Trans::yes ? k : n) && ldo == n;
  if (!dense || m < 128 || n < 128 || k < 128 || (!omp_in_parallel() && omp_get_max_threads() > 1)) return false;
  if (trans_a == Trans::no && trans_b == Trans::yes) return n <= 256 || (m <= 256 && n <= 1024);
  if (trans_a == Trans::yes && trans_b == Trans::no) return m >= 768 && m <= 1024 && n <= 1024;
  return false;
}

/// A matmul primitive and the memory that it works in. Each thread has its own: a primitive with a scratchpad must not be
/// executed twice at once, and ranks may be threads.
struct Matmul {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, out, scratchpad;
  bool packed = false;  // b is wanted in panels
};

/// A product as a function of its types, shapes and strides.
struct MatmulKey {
  DType type, out_type;
  Trans trans_a, trans_b;
  Write write;
  std::size_t m, n, k, lda, ldb, ldo;
  auto operator<=>(const MatmulKey&) const = default;
};

/// What oneDNN's bf16 products like a right-hand side to be: panels of 64 columns, in them blocks of 32 rows, in those pairs of
/// rows side by side (its tag BA16a64b2a), zeros where the matrix ends. For a thousand rows on the left products are faster by
/// more than that takes: with AMX 3.3 ms after 0.5 instead of 5.9 for x[1024,768] w[768,2304]. Its own reorder takes 1.1.
struct Panels {
  static constexpr std::size_t columns = 64, rows = 32;
  static constexpr std::size_t worth_it = 256;  // rows on the left

  std::size_t k, n;
  std::size_t row_blocks() const { return (k + rows - 1) / rows; }
  std::size_t count() const { return (n + columns - 1) / columns; }
  std::size_t numel() const { return count() * row_blocks() * rows * columns; }

  /// Whether `desc` is that layout, of a [k,n] matrix.
  bool are(const dnnl::memory::desc& desc) const {
    const dnnl_memory_desc_t& d = desc.data;
    const auto& blocking = d.format_desc.blocking;
    return d.format_kind == dnnl_blocked && d.offset0 == 0 && blocking.inner_nblks == 3 && blocking.inner_blks[0] == 16 &&
           blocking.inner_blks[1] == columns && blocking.inner_blks[2] == 2 && blocking.inner_idxs[0] == 0 &&
           blocking.inner_idxs[1] == 1 && blocking.inner_idxs[2] == 0 &&
           blocking.strides[0] == static_cast<dnnl_dim_t>(rows * columns) &&
           blocking.strides[1] == static_cast<dnnl_dim_t>(row_blocks() * rows * columns) &&
           desc.get_size() == numel() * sizeof(bf16);
  }

  /// b is [k,n] with rows of `stride`, or, transposed, [n,k].
  void pack(bf16* out, const bf16* b, std::size_t stride, Trans trans) const {
#pragma omp parallel for schedule(static)
    for (std::size_t panel = 0; panel < count(); ++panel) {
      const std::size_t column = panel * columns, width = std::min(columns, n - column);
      for (std::size_t row = 0; row < row_blocks() * rows; row += 2) {
        bf16* const to = out + (panel * row_blocks() * rows + row) * columns;
        if (row + 1 < k && width == columns) {
          if (trans == Trans::no)
            interleave(to, b + row * stride + column, b + (row + 1) * stride + column);
          else if (row % 8 == 0 && row + 8 <= k)
            gather_pairs(to, b + column * stride + row, stride);
          if (trans == Trans::no || row + 8 - row % 8 <= k) continue;
        }
        for (std::size_t j = 0; j < columns; ++j)
          for (std::size_t i = 0; i < 2; ++i) {
            const bool there = row + i < k && j < width;
            const std::size_t at = trans == Trans::no ? (row + i) * stride + column + j : (column + j) * stride + row + i;
            to[2 * j + i].bits = there ? b[at].bits : std::uint16_t{0};
          }
      }
    }
  }

 private:
  /// Two rows, element by element.
  static void interleave(bf16* to, const bf16* upper, const bf16* lower) {
    for (std::size_t j = 0; j < columns; j += 8) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper + j)),
                    b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lower + j));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * j), _mm_unpacklo_epi16(a, b));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * j + 8), _mm_unpackhi_epi16(a, b));
    }
  }
  /// Of 64 rows, stored one after another, eight elements each: four pairs of rows of the panel.
  static void gather_pairs(bf16* to, const bf16* from, std::size_t stride) {
    for (std::size_t j = 0; j < columns; j += 4) {
      const auto row = [&](std::size_t i) {
        return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + (j + i) * stride)));
      };
      __m128 a = row(0), b = row(1), c = row(2), d = row(3);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      const __m128 pairs[] = {a, b, c, d};
      for (std::size_t i = 0; i < 4; ++i)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * 2 * columns + 2 * j), _mm_castps_si128(pairs[i]));
    }
  }
};

dnnl::memory::data_type dnnl_type(DType type) {
  return type == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

struct MatmulCache {
  static constexpr std::size_t most = 256;  // shapes of one model are a dozen; a caller with ever new ones must not fill memory

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<MatmulKey, Matmul> primitives;
  Buffer scratchpad, panels;

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
    if (key.type == DType::bf16 && key.write == Write::overwrite && key.m >= Panels::worth_it) {
      const dnnl::memory::desc any(b.dims(), b.data_type(), dnnl::memory::format_tag::any);
      const dnnl::matmul::primitive_desc description({a, any, out}, attributes, engine);
      if (Panels{key.k, key.n}.are(description.weights_desc()))
        return primitives
            .emplace(key,
                     Matmul{dnnl::matmul(description), a, description.weights_desc(), out, description.scratchpad_desc(), true})
            .first->second;
    }
    const dnnl::matmul::primitive_desc description({a, b, out}, attributes, engine);
    return primitives.emplace(key, Matmul{dnnl::matmul(description), a, b, out, description.scratchpad_desc()}).first->second;
  }
};

void matmul(const MatmulKey& key, const void* a, const void* b, void* out) {
  thread_local MatmulCache cache;
  try {
    const Matmul& found = cache.find(key);
    if (cache.scratchpad.bytes() < found.scratchpad.get_size())
      cache.scratchpad = make_cpu_device()->allocate(found.scratchpad.get_size());
    if (found.packed) {
      const Panels panels = {key.k, key.n};
      if (cache.panels.bytes() < found.b.get_size()) cache.panels = make_cpu_device()->allocate(found.b.get_size());
      auto* const packed = reinterpret_cast<bf16*>(cache.panels.data());
      panels.pack(packed, static_cast<const bf16*>(b), key.ldb, key.trans_b);
      b = packed;
    }
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

template <class Out>
void multiply(const Operands& o, const bf16* a, const bf16* b, Out* out) {
  // oneDNN's gemm for bf16 writes fp32 only. It is the faster one where a is transposed, and where the result is added to;
  // so much faster, that zeros are written to be added to (with AMX 1.5 instead of 2.5 ms for 768 x 768 from 1024 rows).
  if constexpr (std::is_same_v<Out, float>)
    if (o.trans_a == Trans::yes || o.write == Write::add) {
      if (o.write == Write::overwrite)
        for (std::size_t row = 0; row < o.m; ++row) std::fill_n(out + row * o.ldo, o.n, 0.0f);
      return check_status(
          dnnl_gemm_bf16bf16f32(letter(o.trans_a), letter(o.trans_b), narrow<dnnl_dim_t>(o.m), narrow<dnnl_dim_t>(o.n),
                                narrow<dnnl_dim_t>(o.k), 1.0f, &a->bits, narrow<dnnl_dim_t>(o.lda), &b->bits,
                                narrow<dnnl_dim_t>(o.ldb), 1.0f, out, narrow<dnnl_dim_t>(o.ldo)),
          "dnnl_gemm_bf16bf16f32");
    }
  matmul({DType::bf16, dtype_of<Out>, o.trans_a, o.trans_b, o.write, o.m, o.n, o.k, o.lda, o.ldb, o.ldo}, a, b, out);
}

/// Both operands, and a result that is not fp32, as dense fp32 matrices in memory of this thread.
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

}  // namespace

bool multiplies(DType type) {
  return type == DType::f32 || (type == DType::bf16 && dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16);
}

template <class E, class Out>
void gemm(Stream& stream, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const E* a,
          std::size_t lda, const E* b, std::size_t ldb, Out* out, std::size_t ldo, Write write) {
  expect(stream.kind() == DeviceKind::cpu, "this build has kernels for the CPU only");
  if (m == 0 || n == 0) return;
  const AddTime timed(stream.times.gemm);
  const Operands operands = {trans_a, trans_b, m, n, k, lda, ldb, ldo, write};
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
  const std::string_view bf16_by = !multiplies(DType::bf16)              ? "fp32, converted"
                                   : isa >= dnnl_cpu_isa_avx512_core_amx ? "AMX"
                                                                         : "AVX512_BF16";
  return format("oneDNN {}.{}.{}, {} (bf16 by {}, fp16 by fp32, converted)", version->major, version->minor, version->patch,
                name_of(isa), bf16_by);
}

}  // namespace fsdp::kernels
