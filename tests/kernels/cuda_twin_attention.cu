// Compares attention on the GPU with that of the CPU, which computes in fp32 from the same 16-bit numbers. q, k and v are parts
// of one matrix, as in a model, followed by columns that must not change. Each case runs twice and must give the same bits.
// Exits with 77 if there is no device.
#include "kernels/cuda_twin.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#ifdef FSDP_CUDA_DOUBLE
#include "cuda_double_tensor_core.h"
#endif
#include "documents.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/tensor_attention.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace k = fsdp::kernels;

namespace {

struct Case {
  std::size_t B, T, H, K, D;
  float dropout = 0;
  std::size_t behind = 8;  // columns after q, k and v
  bool documents = false;
  std::uint32_t window = 0;

  constexpr std::size_t width() const { return (H + 2 * K) * D; }
  constexpr std::size_t stride() const { return width() + behind; }
  constexpr k::AttentionShape shape(const std::int32_t* positions = nullptr) const {
    return {B, T, H, K, D, stride(), stride(), 0, positions, window};
  }
};

template <class E>
struct Results {
  std::vector<E> out, d_qkv;
  std::vector<float> lse;
};

template <class E>
std::vector<E> rounded(const std::vector<float>& x) {
  return std::vector<E>(x.begin(), x.end());
}

constexpr float mark = 55;

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class E>
Results<E> on_gpu(const Case& c, const std::vector<E>& qkv, const std::vector<E>& d_out, const k::DropoutMask& mask,
                  const char* seed) {
  ::setenv("FSDP_CUDA_DOUBLE_SEED", seed, 1);  // the double's delays, and the order of its lanes
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), "cudaStreamCreateWithPriority");
  const std::size_t key = c.H * c.D, value = key + c.K * c.D;
  const DeviceCopy<E> in(qkv), d_result(d_out), result(std::vector<E>(d_out.size(), E(mark))),
      d_in(std::vector<E>(qkv.size(), E(mark)));
  const DeviceCopy<float> lse(std::vector<float>(c.B * c.H * c.T, mark)),
      scratch(std::vector<float>(c.B * c.H * c.T, std::numeric_limits<float>::quiet_NaN()));
  const DeviceCopy<std::int32_t> positions(document_positions(c.B, c.T));
  const k::AttentionShape shape = c.shape(c.documents ? positions.data() : nullptr);
  check(cudaDeviceSynchronize(), "copying");
  check(k::attention_forward_cuda(
            stream, {dtype_of<E>, result.data(), lse.data(), in.data(), in.data() + key, in.data() + value, shape, mask}),
        "attention");
  check(k::attention_backward_cuda(
            stream, {dtype_of<E>, d_in.data(), d_in.data() + key, d_in.data() + value, d_result.data(), result.data(),
                     lse.data(), in.data(), in.data() + key, in.data() + value, shape, scratch.data(), mask}),
        "attention's backward pass");
  check(cudaStreamSynchronize(stream), "attention");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return {result.fetch(), d_in.fetch(), lse.fetch()};
}

/// Returns true if only the queries from token `past` of each sequence on, with all its keys and values, give the same bits as
/// in `whole`, the results of all queries.
template <class E>
bool continues(const Case& c, const std::vector<E>& qkv, const Results<E>& whole, const k::DropoutMask& mask,
               std::size_t past) {
  const std::size_t key = c.H * c.D, value = key + c.K * c.D, T = c.T - past;
  std::vector<E> queries, want;
  std::vector<float> want_lse;
  const auto take = [&](auto& to, const auto& from, std::size_t first_token, std::size_t step) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>((first_token + past) * step);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(T * step));
  };
  for (std::size_t b = 0; b < c.B; ++b) {
    take(queries, qkv, b * c.T, c.stride());
    take(want, whole.out, b * c.T, c.H * c.D);
    for (std::size_t h = 0; h < c.H; ++h) take(want_lse, whole.lse, (b * c.H + h) * c.T, 1);
  }
  const DeviceCopy<E> in(qkv), q(queries), out(std::vector<E>(want.size(), E(mark)));
  const DeviceCopy<float> lse(std::vector<float>(want_lse.size(), mark));
  k::AttentionShape shape = c.shape();
  shape.T = T, shape.past = past;
  check(cudaDeviceSynchronize(), "copying");
  check(k::attention_forward_cuda(
            nullptr, {dtype_of<E>, out.data(), lse.data(), q.data(), in.data() + key, in.data() + value, shape, mask}),
        "attention behind other tokens");
  check(cudaDeviceSynchronize(), "attention behind other tokens");
  return same_bits(out.fetch(), want) && same_bits(lse.fetch(), want_lse);
}

Results<float> on_cpu(const Case& c, const std::vector<float>& qkv, const std::vector<float>& d_out,
                      const k::DropoutMask& mask) {
  const std::size_t key = c.H * c.D, value = key + c.K * c.D;
  Results<float> r{std::vector<float>(d_out.size()), std::vector<float>(qkv.size(), mark), std::vector<float>(c.B * c.H * c.T)};
  std::vector<float> scratch(k::attention_scratch(c.shape(), k::traits_of_cpu()));
  const std::vector<std::int32_t> positions = document_positions(c.B, c.T);
  const k::AttentionShape shape = c.shape(c.documents ? positions.data() : nullptr);
  k::attention_forward(cpu(), r.out.data(), r.lse.data(), qkv.data(), qkv.data() + key, qkv.data() + value, shape,
                       scratch.data(), mask);
  k::attention_backward(cpu(), r.d_qkv.data(), r.d_qkv.data() + key, r.d_qkv.data() + value, d_out.data(), r.out.data(),
                        r.lse.data(), qkv.data(), qkv.data() + key, qkv.data() + value, shape, scratch.data(), mask);
  return r;
}

/// The largest difference and the largest number.
struct Error {
  double apart = 0, largest = 0;
  void add(float got, float want) {
    const double difference = std::abs(static_cast<double>(got) - static_cast<double>(want));
    if (!(difference <= apart)) apart = difference;  // also for NaN, which is then kept
    largest = std::max(largest, std::abs(static_cast<double>(want)));
  }
};

/// The largest relative error of one rounding to E; for fp32, of a sum of a few hundred terms.
template <class E>
constexpr double rounding = dtype_of<E> == DType::bf16  ? 0x1p-8
                            : dtype_of<E> == DType::f16 ? 0x1p-11
                                                        : 0x1p-18;

template <class E>
void compare(const char* type, const Case& c) {
  const k::DropoutMask mask = k::dropout_mask(c.dropout, 1, 2, 3, 4, c.T);
  const std::vector<E> qkv = rounded<E>(numbers(c.B * c.T * c.stride(), 1)),
                       d_out = rounded<E>(numbers(c.B * c.T * c.H * c.D, 2));
  const Results<float> want =
      on_cpu(c, std::vector<float>(qkv.begin(), qkv.end()), std::vector<float>(d_out.begin(), d_out.end()), mask);
  const Results<E> got = on_gpu(c, qkv, d_out, mask, "1"), again = on_gpu(c, qkv, d_out, mask, "2");
  const bool repeats = same_bits(got.out, again.out) && same_bits(got.lse, again.lse) && same_bits(got.d_qkv, again.d_qkv);
  const bool joins = c.T == 1 || c.documents || continues(c, qkv, got, mask, (c.T + 1) / 2);  // documents have no past

  Error out, lse, d_q, d_k, d_v;
  bool marks = true;
  for (std::size_t i = 0; i < want.out.size(); ++i) out.add(got.out[i], want.out[i]);
  for (std::size_t i = 0; i < want.lse.size(); ++i) lse.add(got.lse[i], want.lse[i]);
  for (std::size_t i = 0; i < want.d_qkv.size(); ++i) {
    const std::size_t column = i % c.stride();
    if (column >= c.width())
      marks = marks && static_cast<float>(got.d_qkv[i]) == mark;
    else
      (column < c.H * c.D ? d_q : column < (c.H + c.K) * c.D ? d_k : d_v).add(got.d_qkv[i], want.d_qkv[i]);
  }
  if (c.T == 1) d_q.largest = d_k.largest = d_v.largest;  // these are zero: softmax of one number is constant

  // Results are rounded, and before that the operands of tensor cores: the probabilities for out and dv, the gradients of
  // scores for dq and dk. dq and dk also include the rounding of out, which the backward pass reads.
  struct {
    const char* name;
    Error error;
    double allowed;
  } const results[] = {{"out", out, 2 * rounding<E>},
                       {"dq", d_q, 4 * rounding<E>},
                       {"dk", d_k, 4 * rounding<E>},
                       {"dv", d_v, 2 * rounding<E>},
                       {"lse", lse, rounding<float>}};
  bool ok = marks && repeats && joins;
  std::printf("%s on %s, B %zu T %zu H %zu K %zu D %zu dropout %.1f%s:", type,
              k::tensor_attention_takes(dtype_of<E>, c.shape()) ? "tensor cores" : "CUDA cores", c.B, c.T, c.H, c.K, c.D,
              static_cast<double>(c.dropout),
              c.documents    ? " documents"
              : c.window > 0 ? " window"
                             : "");
  for (const auto& [name, error, allowed] : results) {
    const double part = error.apart / error.largest / allowed;
    std::printf(" %s %.2f", name, part);
    ok = ok && part <= 1;
  }
  std::printf(" of what is allowed%s%s%s%s\n", marks ? "" : ", columns behind were overwritten",
              repeats ? "" : ", other bits again", joins ? "" : ", other bits behind tokens from before", ok ? "" : "  FAILED");
  if (!ok) ++failures;
}

#ifdef FSDP_CUDA_DOUBLE
constexpr bool on_double = true;
std::uint64_t bank_conflicts() { return cuda_double::bank_conflicts(); }
#else
constexpr bool on_double = false;
std::uint64_t bank_conflicts() { return 0; }  // a GPU does not count them
#endif

/// Numbers of tokens around the sizes of tiles. `few`: only cases that reach every barrier.
template <class E>
void compare_all(const char* type, bool few) {
  for (const std::size_t D : {32, 64, 80, 96, 128}) {
    compare<E>(type, {1, 17, 2, 1, D, 0.2f});
    if (few) {
      compare<E>(type, {1, 130, 1, 1, D, 0.2f, 8, true});
      compare<E>(type, {1, 130, 1, 1, D, 0, 8, false, 50});
      continue;
    }
    compare<E>(type, {2, 1, 2, 2, D});
    compare<E>(type, {2, 63, 2, 2, D, 0.5f});
    compare<E>(type, {1, 64, 3, 1, D});
    compare<E>(type, {1, 65, 4, 2, D, 0.1f, 0});
    compare<E>(type, {2, 129, 2, 1, D});
    compare<E>(type, {1, 200, 1, 1, D, 0.2f, 40});
    compare<E>(type, {2, 200, 2, 1, D, 0.2f, 8, true});
    compare<E>(type, {2, 200, 2, 1, D, D == 64 ? 0.2f : 0, 8, D == 96, 70});
  }
  compare<E>(type, {2, 70, 4, 2, 33, 0.3f, 0});  // on CUDA cores
  if (few) return;
  for (const std::size_t D : {8, 48, 112}) compare<E>(type, {2, 70, 4, 2, D, 0.3f});  // not the width of any kernel
  compare<E>(type, {1, 70, 2, 1, 136});
}

static_assert(k::tensor_attention_takes(DType::bf16, Case{1, 1, 2, 1, 128}.shape()) &&
              k::tensor_attention_takes(DType::f16, Case{1, 1, 2, 1, 80}.shape()));
static_assert(!k::tensor_attention_takes(DType::f32, Case{1, 1, 2, 1, 64}.shape()) &&
              !k::tensor_attention_takes(DType::bf16, Case{1, 1, 2, 1, 33}.shape()) &&
              !k::tensor_attention_takes(DType::bf16, Case{1, 1, 2, 1, 136}.shape()) &&
              !k::tensor_attention_takes(DType::bf16, Case{1, 1, 2, 1, 64, 0, 4}.shape()));

}  // namespace

int main() {
  skip_without_device();
  for (const float dropout : {0.2f, 0.0f})
    for (const std::size_t D : {12, 64}) {
      compare<float>("fp32", {2, 65, 4, 2, D, dropout});
      compare<float>("fp32", {2, 200, on_double ? 2u : 4u, on_double ? 1u : 2u, D, dropout, 8, true});
      compare<float>("fp32", {1, 150, 2, 1, D, dropout, 8, false, 40});
    }
  compare<bf16>("bf16", {1, 65, 4, 2, 64, 0.2f, 4});  // heads that do not begin on multiples of 16 bytes
  compare_all<bf16>("bf16", false);
  compare_all<f16>("fp16", on_double);  // the double rounds to it, and is otherwise the same
  if (bank_conflicts() > 0) {
    std::printf("%llu bank conflicts of ldmatrix  FAILED\n", static_cast<unsigned long long>(bank_conflicts()));
    ++failures;
  }
  return failures > 0;
}
