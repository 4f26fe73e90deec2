// Compares attention by cuDNN with that of the CPU and of our kernels, on a GPU or on the double, where cuDNN has the CPU's
// arithmetic. Also tests which shapes cuDNN takes, in how many calls and in how much memory. On a GPU without cuDNN the test is
// skipped.
#include "kernels/cudnn.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "base/format.hpp"
#include "device/memory_view.hpp"
#include "kernels/device_kernels.hpp"
#include "kernels/threads.hpp"
#include "support.hpp"
#include "support/gpu.hpp"
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

constexpr float mark = 55;

/// A copy of numbers in the memory of a device.
struct Copy {
  template <class N>
  Copy(Device& device, Stream& stream, std::vector<N>& numbers)
      : host(std::as_writable_bytes(std::span(numbers))), buffer(device.allocate(host.size())), on(stream) {
    view().write(0, host);
  }
  MemoryView view() const { return MemoryView(std::span(buffer.data(), host.size()), on); }
  void fetch() const { view().read(0, host); }
  template <class N>
  N* as() const {
    return reinterpret_cast<N*>(buffer.data());
  }
  std::span<std::byte> host;
  Buffer buffer;
  Stream& on;
};

/// Both passes of `shape`, with numbers that are rounded to N; the backward pass has `backward_parts`. Before the part of the
/// scratch that is planned for attention there are `gap` floats. It starts with NaNs, and the floats after it must not change.
template <class E, class N = E>
Results<E> run(Device& device, Stream& stream, const AttentionShape& shape, std::size_t backward_parts,
               const DeviceTraits& traits, std::size_t gap, const kernels::DropoutMask& mask = {}) {
  const std::size_t rows = shape.B * shape.T, k = shape.H * shape.D, v = k + shape.K * shape.D;
  AttentionShape backward = shape;
  backward.cudnn_parts = backward_parts;
  std::vector<E> qkv, d_out;
  for (const float x : random_floats(rows * shape.q_stride, 1)) qkv.push_back(E(static_cast<float>(N(2 * x))));
  for (const float x : random_floats(rows * k, 2)) d_out.push_back(E(static_cast<float>(N(x))));
  const std::size_t planned_floats =
      std::max(kernels::attention_scratch(shape, traits), kernels::attention_scratch(backward, traits));
  Floats scratch(gap + planned_floats, std::numeric_limits<float>::quiet_NaN());
  scratch.insert(scratch.end(), 64, mark);
  Results<E> results{std::vector<E>(qkv.size(), E(mark)), std::vector<E>(d_out.size(), E(mark)),
                     Floats(shape.B * shape.H * shape.T, mark)};
  const Copy on_qkv(device, stream, qkv), on_d_out(device, stream, d_out), on_d_qkv(device, stream, results.d_qkv),
      on_out(device, stream, results.out), on_lse(device, stream, results.lse), on_scratch(device, stream, scratch);
  kernels::prepare_attention(stream, dtype_of<E>, shape, true);
  kernels::prepare_attention(stream, dtype_of<E>, backward, true);
  on_stream(stream, [&] {
    E *const x = on_qkv.as<E>(), *const d = on_d_qkv.as<E>(), *const y = on_out.as<E>();
    float *const sums = on_lse.as<float>(), *const planned = on_scratch.as<float>() + gap;
    kernels::attention_forward(stream, y, sums, x, x + k, x + v, shape, planned, mask);
    kernels::attention_backward(stream, d, d + k, d + v, on_d_out.as<E>(), y, sums, x, x + k, x + v, backward, planned, mask);
  });
  for (const Copy* copy : {&on_d_qkv, &on_out, &on_lse, &on_scratch}) copy->fetch();
  if (std::any_of(scratch.end() - 64, scratch.end(), [](float x) { return x != mark; }))
    throw std::runtime_error("memory after the planned workspace has changed");
  return results;
}

template <class N>
bool same_bits(const std::vector<N>& a, const std::vector<N>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(N)) == 0;
}
template <class E>
bool same_bits(const Results<E>& a, const Results<E>& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.d_qkv, b.d_qkv);
}

struct Gpu {
  std::unique_ptr<Device> device = make_device(Threads::of_gpu, 0);
  std::shared_ptr<Stream> stream = device->make_stream();
  kernels::Cudnn cudnn = load();

 private:
  kernels::Cudnn load() const {
    try {
      return stream->kernels()->load_cudnn();
    } catch (const UserError& error) {
      if (!wants_real_gpu()) throw;
      std::printf("skipped: %s\n", error.what());
      std::fflush(stdout);
      std::_Exit(77);
    }
  }
};
Gpu& gpu() {
  static Gpu one;
  return one;
}

AttentionShape own_kernels(AttentionShape shape) {
  shape.cudnn_parts = 0;
  return shape;
}

template <class E>
std::string name_of(const AttentionShape& s) {
  return format("{}, B {} T {} H {} K {} D {}{}, {}", fsdp::name_of(dtype_of<E>), s.B, s.T, s.H, s.K, s.D,
                s.window > 0 ? format(" window {}", s.window) : "",
                s.cudnn_parts == 1 ? "all heads" : format("heads in {} parts", s.cudnn_parts));
}

/// The largest error of a result, and where.
struct Worst {
  double part = 0;  // of what is allowed
  std::string where = "nothing";
};
Worst worst_of_all;

/// Compares `got` with `want`, and prints one line if an error is above its bound. Each bound is relative to the result's
/// largest number, and a multiple of `rounding`, the largest error of rounding a number to E. Besides the results, the
/// operands of tensor cores are rounded: the probabilities for out and dv, the gradients of scores for dq and dk, which also
/// include the rounding of out. If query heads share keys, cuDNN rounds dk and dv of each before it adds them. An error of lse
/// is the relative error of all probabilities of a query. 2^-16 of the largest lse, at most 11 here, is less than `rounding`.
/// `more`: a factor for all bounds.
template <class E, class F>
void compare(const std::string& name, const AttentionShape& s, const Results<E>& got, const Results<F>& want, double more = 1) {
  const double rounding = dtype_of<E> == DType::bf16 ? 0x1p-8 : 0x1p-11, shared = s.K < s.H ? 2 : 0;
  struct Part {
    const char* name;
    double allowed, apart = 0, largest = 0;
    void add(float a, float b) {
      const double difference = std::abs(static_cast<double>(a) - static_cast<double>(b));
      if (!(difference <= apart)) apart = difference;  // also for NaN, which is then kept
      largest = std::max(largest, std::abs(static_cast<double>(b)));
    }
  };
  Part out{"out", 2 * rounding}, lse{"lse", 0x1p-16}, dq{"dq", 4 * rounding}, dk{"dk", (4 + shared) * rounding},
      dv{"dv", (2 + shared) * rounding};
  for (std::size_t i = 0; i < want.out.size(); ++i) out.add(got.out[i], want.out[i]);
  for (std::size_t i = 0; i < want.lse.size(); ++i) lse.add(got.lse[i], want.lse[i]);
  std::string problems;
  for (std::size_t i = 0; i < want.d_qkv.size(); ++i) {
    const std::size_t column = i % s.q_stride, k = s.H * s.D, v = k + s.K * s.D;
    if (column < v + s.K * s.D)
      (column < k ? dq : column < v ? dk : dv).add(got.d_qkv[i], want.d_qkv[i]);
    else if (static_cast<float>(got.d_qkv[i]) != mark)
      problems = " columns after dv have changed";
  }
  if (s.window == 1) dq.largest = dk.largest = dv.largest;  // these are zero: softmax of one number is constant
  for (const Part& part : {out, lse, dq, dk, dv}) {
    const double error = part.apart / part.largest / part.allowed / more;
    if (!(error <= worst_of_all.part)) worst_of_all = {error, format("{} of {}", part.name, name)};
    if (!(error <= 1)) problems += format(" {} {:.3g} ({:.2f} of what is allowed)", part.name, part.apart, error);
  }
  if (!problems.empty()) BOOST_ERROR(name + ":" + problems);
}

/// Compares cuDNN, and cuDNN's forward pass with our backward pass, with the CPU, which computes in fp32 from the same 16-bit
/// numbers. Repeats cuDNN's passes, which must give the same bits. The double must give those of the CPU.
template <class E>
void check_shape(const AttentionShape& shape, int repeats) {
  const std::string name = name_of<E>(shape);
  try {
    const auto cpu = make_cpu_device();
    const auto there = [&](std::size_t backward_parts) {
      return run<E>(*gpu().device, *gpu().stream, shape, backward_parts, cuda_traits(), 16);
    };
    const auto got = there(shape.cudnn_parts);
    const auto want = run<float, E>(*cpu, *make_host_stream(), own_kernels(shape), 0, kernels::traits_of_cpu(), 0);
    compare(name, shape, got, want);
    if (wants_real_gpu() || shape.T < 200)  // our kernels take long on the double
      compare(name + ", our backward pass", shape, there(0), want);
    for (int i = 1; i < repeats; ++i)
      if (!same_bits(got, there(shape.cudnn_parts))) {
        BOOST_ERROR(name << ": other bits at call " << i + 1);
        break;
      }
    if (!wants_real_gpu())
      BOOST_TEST(same_bits(got, run<E>(*cpu, *make_host_stream(), own_kernels(shape), 0, kernels::traits_of_cpu(), 0)), name);
  } catch (const std::exception& error) {
    BOOST_ERROR(name << ": " << error.what());
  }
}

AttentionShape in_parts(AttentionShape shape, std::size_t parts, std::uint32_t window = 0) {
  shape.cudnn_parts = parts, shape.window = window;
  return shape;
}

}  // namespace

BOOST_AUTO_TEST_CASE(results_are_those_of_the_cpu) {
  const int repeats = wants_real_gpu() ? 20 : 3;
  for (const std::size_t D : {64, 72, 80, 96, 128}) {
    for (const std::uint32_t window : {0, 1, 9, 16, 17}) check_shape<bf16>(in_parts(shape_of(2, 17, 4, 2, D), 1, window), 2);
    check_shape<f16>(in_parts(shape_of(2, 17, 2, 2, D), 1), 2);
    check_shape<f16>(in_parts(shape_of(1, 130, 4, 4, D), 2, 129), 2);
  }
  for (const std::uint32_t window : {0, 1, 512, 999, 1000})
    check_shape<bf16>(in_parts(shape_of(1, 1000, 2, 1, 64), 1, window), 2);
  check_shape<bf16>(in_parts(shape_of(1, 1000, 4, 2, 128), 2), repeats);
  check_shape<f16>(in_parts(shape_of(1, 1000, 2, 2, 64), 2), repeats);
  AttentionShape apart = in_parts(shape_of(2, 70, 4, 1, 64), 1);
  apart.q_stride = apart.kv_stride += 8;
  check_shape<bf16>(apart, 2);
  for (const auto& [shape, parts] : {std::pair(shape_of(2, 45, 4, 2, 16), 2), std::pair(shape_of(1, 70, 6, 6, 8), 3),
                                     std::pair(shape_of(3, 17, 8, 4, 24), 4)})
    for (const std::uint32_t window : {0u, 9u}) check_shape<bf16>(in_parts(shape, static_cast<std::size_t>(parts), window), 2);
  if (gpu().cudnn.most_head_size >= 256) check_shape<bf16>(in_parts(shape_of(1, 130, 4, 2, 256), 1), 2);
  std::printf("cuDNN %s: the largest error is %.2f of what is allowed (%s)\n", gpu().cudnn.version.c_str(), worst_of_all.part,
              worst_of_all.where.c_str());
}

// Compares the attention of models with that of our kernels, which also round: the bounds are twice as large. The double would
// take too long.
BOOST_AUTO_TEST_CASE(results_are_those_of_our_kernels) {
  if (!wants_real_gpu()) return;
  const auto check = []<class E>(E, AttentionShape shape) {
    shape.cudnn_parts = kernels::cudnn_parts(dtype_of<E>, shape);
    const std::string name = name_of<E>(shape);
    try {
      const auto by = [&](const AttentionShape& s) {
        return run<E>(*gpu().device, *gpu().stream, s, s.cudnn_parts, cuda_traits(), 16);
      };
      compare(name, shape, by(shape), by(own_kernels(shape)), 2);
    } catch (const std::exception& error) {
      BOOST_ERROR(name << ": " << error.what());
    }
  };
  check(bf16(), shape_of(16, 1024, 12, 12, 64));  // GPT-2 124M
  check(bf16(), shape_of(4, 2048, 32, 32, 64));   // 1.3B
  check(f16(), shape_of(4, 2048, 32, 32, 64));
  check(bf16(), shape_of(1, 4096, 32, 8, 128));  // Llama 3.1 8B
  check(bf16(), in_parts(shape_of(1, 4096, 32, 8, 128), 0, 512));
  check(bf16(), shape_of(1, 8192, 32, 8, 128));
}

BOOST_AUTO_TEST_CASE(dropout_stays_with_our_kernels) {
  AttentionShape own = shape_of(1, 33, 2, 2, 16), by_cudnn = own;
  by_cudnn.cudnn_parts = 1;
  const kernels::DropoutMask mask = kernels::dropout_mask(0.2f, 5, 2, 7, 11, own.T);
  BOOST_TEST(same_bits(run<bf16>(*gpu().device, *gpu().stream, own, 0, cuda_traits(), 0, mask),
                       run<bf16>(*gpu().device, *gpu().stream, by_cudnn, 1, cuda_traits(), 0, mask)));
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
