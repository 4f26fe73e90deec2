#include <dnnl.h>

#include <string>

#include "base/error.hpp"
#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "kernels/gemm.hpp"
#include "kernels/kernels.hpp"

namespace fsdp::kernels {

void untimed_gemm(Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const float* a, std::size_t lda, const float* b,
                  std::size_t ldb, float* out, std::size_t ldo, Write write) {
  if (m == 0 || n == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm(trans_a == Trans::yes ? 'T' : 'N', trans_b == Trans::yes ? 'T' : 'N', narrow<dnnl_dim_t>(m), narrow<dnnl_dim_t>(n),
                 narrow<dnnl_dim_t>(k), 1.0f, a, narrow<dnnl_dim_t>(lda), b, narrow<dnnl_dim_t>(ldb), write == Write::add ? 1.0f : 0.0f,
                 out, narrow<dnnl_dim_t>(ldo));
  if (status != dnnl_success) throw CallError("dnnl_sgemm", "status " + std::to_string(static_cast<int>(status)));
}

void gemm(Stream& stream, Trans trans_a, Trans trans_b, std::size_t m, std::size_t n, std::size_t k, const float* a, std::size_t lda,
          const float* b, std::size_t ldb, float* out, std::size_t ldo, Write write) {
  expect(stream.kind() == DeviceKind::cpu, "this build has kernels for the CPU only");
  const AddTime timed(stream.times.gemm);
  untimed_gemm(trans_a, trans_b, m, n, k, a, lda, b, ldb, out, ldo, write);
}

const char* gemm_description() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl_version();
    const char* isa = "an instruction set below SSE4.1";
    switch (dnnl_get_effective_cpu_isa()) {
      case dnnl_cpu_isa_sse41: isa = "sse41"; break;
      case dnnl_cpu_isa_avx: isa = "avx"; break;
      case dnnl_cpu_isa_avx2: isa = "avx2"; break;
      case dnnl_cpu_isa_avx512_core: isa = "avx512_core"; break;
      case dnnl_cpu_isa_avx512_core_vnni: isa = "avx512_core_vnni"; break;
      case dnnl_cpu_isa_avx512_core_bf16: isa = "avx512_core_bf16"; break;
      case dnnl_cpu_isa_avx512_core_amx: isa = "avx512_core_amx"; break;
      default: break;
    }
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch) + ", " +
           isa;
  }();
  return text.c_str();
}

}  // namespace fsdp::kernels
