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
#include <omp.h>
#include <dnnl.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "kernels/kernels.hpp"

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
};

struct MatmulCache {
  using Key = std::array<std::int64_t, 6>;  // trans_a, trans_b, m, n, k, write
  static constexpr std::size_t most = 256;  // shapes of one model are a dozen; a caller with ever new ones must not fill memory

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Matmul> primitives;
  std::vector<std::byte> scratchpad;

  const Matmul& find(const Key& key) {
    const auto found = primitives.find(key);
    if (found != primitives.end()) return found->second;
    if (primitives.size() == most) primitives.clear();
    const auto [trans_a, trans_b, m, n, k, write] = key;
    using Desc = dnnl::memory::desc;
    using Dims = dnnl::memory::dims;
    constexpr auto f32 = dnnl::memory::data_type::f32;
    const Desc a({m, k}, f32, trans_a ? Dims{1, m} : Dims{k, 1});
    const Desc b({k, n}, f32, trans_b ? Dims{1, k} : Dims{n, 1});
    const Desc out({m, n}, f32, Dims{n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (write == static_cast<std::int64_t>(Write::add)) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    const dnnl::matmul::primitive_desc description({a, b, out}, attributes, engine);
    return primitives.emplace(key, Matmul{dnnl::matmul(description), a, b, out, description.scratchpad_desc()}).first->second;
  }
};

void matmul(Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const float* a, const float* b,
            float* out, Write write) {
  thread_local MatmulCache cache;
  try {
    const Matmul& found =
        cache.find({static_cast<std::int64_t>(trans_a), static_cast<std::int64_t>(trans_b), narrow<std::int64_t>(m),
                    narrow<std::int64_t>(n), narrow<std::int64_t>(k), static_cast<std::int64_t>(write)});
    if (cache.scratchpad.size() < found.scratchpad.get_size()) cache.scratchpad.resize(found.scratchpad.get_size());
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

}  // namespace

void gemm(Stream& stream, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const float* a,
          std::size_t lda, const float* b, std::size_t ldb, float* out, std::size_t ldo, Write write) {
  expect(stream.kind() == DeviceKind::cpu, "this build has kernels for the CPU only");
  if (m == 0 || n == 0) return;
  const AddTime timed(stream.times.gemm);
  if (matmul_is_faster(trans_a, trans_b, m, n, k, lda, ldb, ldo)) return matmul(trans_a, trans_b, m, n, k, a, b, out, write);
  const dnnl_status_t status =
      dnnl_sgemm(trans_a == Trans::yes ? 'T' : 'N', trans_b == Trans::yes ? 'T' : 'N', narrow<dnnl_dim_t>(m),
                 narrow<dnnl_dim_t>(n), narrow<dnnl_dim_t>(k), 1.0f, a, narrow<dnnl_dim_t>(lda), b, narrow<dnnl_dim_t>(ldb),
                 write == Write::add ? 1.0f : 0.0f, out, narrow<dnnl_dim_t>(ldo));
  if (status != dnnl_success) throw CallError("dnnl_sgemm", "status " + std::to_string(static_cast<int>(status)));
}

const char* gemm_description() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl_version();
    const char* isa = "an instruction set below SSE4.1";
    switch (dnnl_get_effective_cpu_isa()) {
      case dnnl_cpu_isa_sse41:
        isa = "sse41";
        break;
      case dnnl_cpu_isa_avx:
        isa = "avx";
        break;
      case dnnl_cpu_isa_avx2:
        isa = "avx2";
        break;
      case dnnl_cpu_isa_avx512_core:
        isa = "avx512_core";
        break;
      case dnnl_cpu_isa_avx512_core_vnni:
        isa = "avx512_core_vnni";
        break;
      case dnnl_cpu_isa_avx512_core_bf16:
        isa = "avx512_core_bf16";
        break;
      case dnnl_cpu_isa_avx512_core_amx:
        isa = "avx512_core_amx";
        break;
      default:
        break;
    }
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + ", " + isa;
  }();
  return text.c_str();
}

}  // namespace fsdp::kernels
