// oneDNN's products of matrices: its gemm for the type, or a cached matmul primitive for shapes where matmul is faster on one
// thread. The choice depends only on the shape and on whether several threads share the product, so that a result does not
// depend on timing. GFLOP/s of sgemm against
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

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "kernels/gemm_library.hpp"
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
  // A model has about a dozen shapes for each number of columns of its micro-batches.
  static constexpr std::size_t most = 1024;

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

char letter(Trans trans) { return trans == Trans::yes ? 'T' : 'N'; }

void check_status(dnnl_status_t status, const char* call) {
  if (status != dnnl_success) throw CallError(call, "status " + std::to_string(static_cast<int>(status)));
}

template <class Out>
void multiply_bf16(const Operands& o, const bf16* a, const bf16* b, Out* out) {
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

void library_multiply(const Operands& o, const float* a, const float* b, float* out) {
  if (matmul_is_faster(o.trans_a, o.trans_b, o.m, o.n, o.k, o.lda, o.ldb, o.ldo))
    return matmul({DType::f32, DType::f32, o.trans_a, o.trans_b, o.write, o.m, o.n, o.k, o.lda, o.ldb, o.ldo}, a, b, out);
  check_status(dnnl_sgemm(letter(o.trans_a), letter(o.trans_b), narrow<dnnl_dim_t>(o.m), narrow<dnnl_dim_t>(o.n),
                          narrow<dnnl_dim_t>(o.k), 1.0f, a, narrow<dnnl_dim_t>(o.lda), b, narrow<dnnl_dim_t>(o.ldb),
                          o.write == Write::add ? 1.0f : 0.0f, out, narrow<dnnl_dim_t>(o.ldo)),
               "dnnl_sgemm");
}

void library_multiply(const Operands& o, const bf16* a, const bf16* b, float* out) { multiply_bf16(o, a, b, out); }
void library_multiply(const Operands& o, const bf16* a, const bf16* b, bf16* out) { multiply_bf16(o, a, b, out); }

bool library_multiplies_bf16() { return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16; }

bool library_allows_amx() { return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx; }

/// oneDNN's gemm allocates panels of both operands, 384 long along k, and frees them after the product (measured with version
/// 2.6.3).
std::size_t library_workspace_bytes(std::size_t m, std::size_t n, std::size_t) {
  constexpr std::size_t panel = 384, most = 8192;
  return sizeof(float) * panel * (std::min(m, most) + std::min(n, most));
}

std::string library_description() {
  const dnnl_version_t* version = dnnl_version();
  return format("oneDNN {}.{}.{}, {}", version->major, version->minor, version->patch, name_of(dnnl_get_effective_cpu_isa()));
}

}  // namespace fsdp::kernels
