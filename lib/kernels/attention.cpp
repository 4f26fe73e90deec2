// Launches attention, forward and backward, on the CPU or a GPU.
#include "kernels/rows/attention.hpp"
#include "base/timer.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"

namespace fsdp::kernels {

namespace {

template <class Body>
inline constexpr bool has_tile_form = false;
template <>
inline constexpr bool has_tile_form<AttentionForward<bf16>> = true;
template <>
inline constexpr bool has_tile_form<AttentionBackward<bf16>> = true;

template <class Body>
void launch_attention(Stream& stream, const Body& body, std::size_t rows, float* scratch, std::size_t per_thread) {
  const AddTime timed(stream.times.attention);
  if constexpr (has_tile_attention && has_tile_form<Body>)
    if (has_tiles() && body.shape.past == 0) return run_attention<tile_level>(body, rows, scratch, per_thread);
  at_cpu_level([&]<int level>() { run_attention<level>(body, rows, scratch, per_thread); });
}

}  // namespace

void prepare_attention(const Stream& stream, DType type, const AttentionShape& shape, bool backward) {
  if (const DeviceKernels* device = stream.kernels()) device->prepare_attention(type, shape, backward);
}

std::size_t attention_scratch(const AttentionShape& shape, const DeviceTraits& device) {
  if (!is_host(device.kind)) {
    const std::size_t own = shape.B * shape.H * shape.T;
    if (shape.cudnn_parts == 0) return own;
    const std::size_t workspace = cudnn_workspace(part_of_heads(shape, shape.cudnn_parts)) + cudnn_alignment;
    return std::max(own, workspace / sizeof(float));
  }
  return device.threads * attention_scratch_of_thread(shape.T, shape.D);
}

std::size_t attention_forward_scratch(const AttentionShape& shape, const DeviceTraits& device) {
  if (!is_host(device.kind)) return 0;
  return device.threads * attention_forward_scratch_of_thread(shape.past + shape.T, shape.D);
}

template <class E>
void attention_forward(Stream& stream, E* out, float* lse, const E* q, const E* k, const E* v, const AttentionShape& shape,
                       float* scratch, const DropoutMask& mask) {
  expect(shape.K > 0 && shape.H % shape.K == 0, "the number of query heads must be a multiple of the number of key heads");
  if (const DeviceKernels* device = stream.kernels())
    return device->attention_forward(stream, {dtype_of<E>, out, lse, q, k, v, shape, mask, scratch});
  launch_attention(stream, AttentionForward<E>{out, lse, q, k, v, shape, mask}, shape.B * shape.H, scratch,
                   attention_forward_scratch_of_thread(shape.past + shape.T, shape.D));
}

template <class E>
void attention_backward(Stream& stream, E* dq, E* dk, E* dv, const E* d_out, const E* out, const float* lse, const E* q,
                        const E* k, const E* v, const AttentionShape& shape, float* scratch, const DropoutMask& mask) {
  expect(shape.K > 0 && shape.H % shape.K == 0, "the number of query heads must be a multiple of the number of key heads");
  if (const DeviceKernels* device = stream.kernels())
    return device->attention_backward(stream, {dtype_of<E>, dq, dk, dv, d_out, out, lse, q, k, v, shape, scratch, mask});
  launch_attention(stream, AttentionBackward<E>{dq, dk, dv, d_out, out, lse, q, k, v, shape, mask}, shape.B * shape.K, scratch,
                   attention_scratch_of_thread(shape.T, shape.D));
}

#define FSDP_INSTANTIATE(E)                                                                                             \
  template void attention_forward(Stream&, E*, float*, const E*, const E*, const E*, const AttentionShape&, float*,     \
                                  const DropoutMask&);                                                                  \
  template void attention_backward(Stream&, E*, E*, E*, const E*, const E*, const float*, const E*, const E*, const E*, \
                                   const AttentionShape&, float*, const DropoutMask&);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
