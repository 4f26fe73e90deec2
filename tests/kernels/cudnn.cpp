// Attention by cuDNN behind the interface of libfsdp_cudnn: which shapes it takes, in how many calls and in how much memory,
// and that each call gets its heads. On the double, cuDNN has the arithmetic of the CPU, so the bits are the same.
#include "kernels/cudnn.hpp"

#include "base/format.hpp"
#include "device/memory_view.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/threads.hpp"
#include "support.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;
using kernels::AttentionShape;

namespace {

/// A fused shape.
AttentionShape shape_of(std::size_t B, std::size_t T, std::size_t H, std::size_t K, std::size_t D) {
  return {B, T, H, K, D, (H + 2 * K) * D, (H + 2 * K) * D};
}

/// The results of both passes: d_qkv, out and lse.
template <class E>
struct Results {
  std::vector<E> d_qkv, out;
  std::vector<float> lse;
};

/// `gap`: floats of scratch before the part that is planned for attention.
template <class E>
Results<E> run(Device& device, Stream& stream, const AttentionShape& s, const DeviceTraits& traits, std::size_t gap,
               const kernels::DropoutMask& mask = {}) {
  const std::size_t rows = s.B * s.T, width = s.q_stride, k = s.H * s.D, v = k + s.K * s.D;
  std::vector<E> qkv, d_out;
  for (const float x : random_floats(rows * width, 1)) qkv.push_back(E(x));
  for (const float x : random_floats(rows * k, 2)) d_out.push_back(E(x));
  const Buffer on_qkv = device.allocate(qkv.size() * sizeof(E)), on_d_qkv = device.allocate(qkv.size() * sizeof(E)),
               on_out = device.allocate(d_out.size() * sizeof(E)), on_d_out = device.allocate(d_out.size() * sizeof(E)),
               on_lse = device.allocate(s.B * s.H * s.T * sizeof(float)),
               scratch = device.allocate((gap + kernels::attention_scratch(s, traits)) * sizeof(float));
  const auto view = [&](const Buffer& buffer) { return MemoryView(std::span(buffer.data(), buffer.bytes()), stream); };
  view(on_qkv).write(0, std::as_bytes(std::span(qkv)));
  view(on_d_out).write(0, std::as_bytes(std::span(d_out)));
  const auto at = [](const Buffer& buffer) { return reinterpret_cast<E*>(buffer.data()); };
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  kernels::prepare_attention(stream, dtype_of<E>, s, true);
  on_stream(stream, [&] {
    E *const x = at(on_qkv), *const d = at(on_d_qkv);
    float* const planned = floats(scratch) + gap;
    kernels::attention_forward(stream, at(on_out), floats(on_lse), x, x + k, x + v, s, planned, mask);
    kernels::attention_backward(stream, d, d + k, d + v, at(on_d_out), at(on_out), floats(on_lse), x, x + k, x + v, s, planned,
                                mask);
  });
  Results<E> results{std::vector<E>(qkv.size()), std::vector<E>(d_out.size()), Floats(s.B * s.H * s.T)};
  view(on_d_qkv).read(0, std::as_writable_bytes(std::span(results.d_qkv)));
  view(on_out).read(0, std::as_writable_bytes(std::span(results.out)));
  view(on_lse).read(0, std::as_writable_bytes(std::span(results.lse)));
  return results;
}

template <class N>
bool same_bits(const std::vector<N>& a, const std::vector<N>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(N)) == 0;
}

template <class E>
void check_bits(const AttentionShape& shape) {
  const auto gpu = make_device(Threads::of_gpu, 0), cpu = make_cpu_device();
  AttentionShape own = shape;
  own.cudnn_parts = 0;
  const auto there = run<E>(*gpu, *gpu->make_stream(), shape, cuda_traits(), 16);
  const auto here = run<E>(*cpu, *make_host_stream(), own, kernels::traits_of_cpu(), 0);
  const std::string name = format("T {}, {} heads of {}, {} parts", shape.T, shape.H, shape.D, shape.cudnn_parts);
  BOOST_TEST(same_bits(there.out, here.out), name);
  BOOST_TEST(same_bits(there.lse, here.lse), name);
  BOOST_TEST(same_bits(there.d_qkv, here.d_qkv), name);
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_call_gets_its_heads) {
  for (const auto& [shape, parts] : {std::pair(shape_of(2, 45, 4, 2, 16), 1), std::pair(shape_of(2, 45, 4, 2, 16), 2),
                                     std::pair(shape_of(1, 70, 6, 6, 8), 3), std::pair(shape_of(3, 17, 8, 4, 24), 4)})
    for (const std::uint32_t window : {0u, 9u}) {
      AttentionShape s = shape;
      s.cudnn_parts = static_cast<std::size_t>(parts), s.window = window;
      check_bits<bf16>(s);
      check_bits<f16>(s);
    }
}

BOOST_AUTO_TEST_CASE(dropout_stays_with_our_kernels) {
  const auto gpu = make_device(Threads::of_gpu, 0);
  const auto stream = gpu->make_stream();
  AttentionShape own = shape_of(1, 33, 2, 2, 16), by_cudnn = own;
  by_cudnn.cudnn_parts = 1;
  const kernels::DropoutMask mask = kernels::dropout_mask(0.2f, 5, 2, 7, 11, own.T);
  const auto a = run<bf16>(*gpu, *stream, own, cuda_traits(), 0, mask),
             b = run<bf16>(*gpu, *stream, by_cudnn, cuda_traits(), 0, mask);
  BOOST_TEST(same_bits(a.d_qkv, b.d_qkv));
}

BOOST_AUTO_TEST_CASE(shapes_that_cudnn_takes) {
  using kernels::cudnn_parts;
  BOOST_TEST(cudnn_parts(DType::bf16, shape_of(1, 4096, 32, 8, 128)) == 2u);  // 1,088 MiB for all heads
  BOOST_TEST(cudnn_parts(DType::bf16, shape_of(1, 8192, 32, 8, 128)) == 8u);
  BOOST_TEST(cudnn_parts(DType::f16, shape_of(4, 2048, 32, 32, 64)) == 2u);
  BOOST_TEST(cudnn_parts(DType::bf16, shape_of(16, 1024, 12, 12, 64)) == 1u);
  BOOST_TEST(cudnn_parts(DType::f32, shape_of(1, 64, 2, 2, 64)) == 0u);
  BOOST_TEST(cudnn_parts(DType::bf16, shape_of(1, 64, 2, 2, 60)) == 0u);
  BOOST_TEST(cudnn_parts(DType::bf16, shape_of(1, 32768, 8, 8, 64)) == 0u);  // 2 GiB for one head
  AttentionShape s = shape_of(1, 64, 2, 2, 64);
  const std::int32_t position = 0;
  s.positions = &position;
  BOOST_TEST(cudnn_parts(DType::bf16, s) == 0u);
  s.positions = nullptr, s.past = 1;
  BOOST_TEST(cudnn_parts(DType::bf16, s) == 0u);
}

BOOST_AUTO_TEST_CASE(the_plan_has_the_workspace) {
  AttentionShape s = shape_of(1, 4096, 32, 8, 128);
  const std::size_t own = kernels::attention_scratch(s, cuda_traits());
  BOOST_TEST(own == 32u * 4096);
  s.cudnn_parts = 1;
  BOOST_TEST(4 * kernels::attention_scratch(s, cuda_traits()) ==
             (std::size_t{2177} << 19) + kernels::cudnn_forward_workspace + kernels::cudnn_alignment);
  s.cudnn_parts = 2;
  BOOST_TEST(4 * kernels::attention_scratch(s, cuda_traits()) < std::size_t{1} << 30);
}
