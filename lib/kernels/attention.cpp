#include <omp.h>

#include "base/timer.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/attention.hpp"

namespace fsdp::kernels {

namespace {

template <class Body>
void launch_attention(Stream& stream, const Body& body, std::size_t rows, float* scratch) {
  expect(stream.kind() == DeviceKind::cpu, "this build has kernels for the CPU only");
  expect(body.shape.K > 0 && body.shape.H % body.shape.K == 0, "query heads must be a multiple of key heads");
  const AddTime timed(stream.times.attention);
  const std::size_t per_thread = AttentionScratch{body.shape.T, body.shape.D}.per_thread();
  switch (cpu_level()) {
    case CpuLevel::v4:
      return run_attention<4>(body, rows, scratch, per_thread);
    case CpuLevel::v3:
      return run_attention<3>(body, rows, scratch, per_thread);
    case CpuLevel::v2:
      return run_attention<2>(body, rows, scratch, per_thread);
  }
}

}  // namespace

std::size_t attention_scratch(const AttentionShape& shape) {
  return static_cast<std::size_t>(omp_get_max_threads()) * AttentionScratch{shape.T, shape.D}.per_thread();
}

void attention_forward(Stream& stream, float* out, float* lse, const float* q, const float* k, const float* v,
                       const AttentionShape& shape, float* scratch, const DropoutMask& mask) {
  launch_attention(stream, AttentionForward{out, lse, q, k, v, shape, mask}, shape.B * shape.H, scratch);
}

void attention_backward(Stream& stream, float* dq, float* dk, float* dv, const float* d_out, const float* out, const float* lse,
                        const float* q, const float* k, const float* v, const AttentionShape& shape, float* scratch,
                        const DropoutMask& mask) {
  launch_attention(stream, AttentionBackward{dq, dk, dv, d_out, out, lse, q, k, v, shape, mask}, shape.B * shape.K, scratch);
}

}  // namespace fsdp::kernels
