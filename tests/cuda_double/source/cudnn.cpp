// A library for the place of libfsdp_cudnn: it computes attention by the kernels of the CPU. As cuDNN does, it reads and
// writes only the heads that it is asked for, and all of the workspace that is planned.
#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <vector>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "double.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/threads.hpp"

namespace fsdp::kernels {

namespace {

using cuda_double::die;

/// A matrix in device memory: `rows` rows of `columns` elements, `stride` elements apart.
template <class E>
struct Matrix {
  E* data;
  std::size_t rows, columns, stride;

  std::vector<E> read() const {
    std::vector<E> numbers(rows * columns);
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(data + r * stride, columns, &numbers[r * columns]);
    return numbers;
  }
  void write(const std::vector<E>& numbers) const {
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(&numbers[r * columns], columns, data + r * stride);
  }
};

template <class E>
Matrix<E> matrix(const void* data, std::size_t rows, std::size_t columns, std::size_t stride) {
  return {static_cast<E*>(const_cast<void*>(data)), rows, columns, stride};
}

/// The same attention of tensors without gaps, and scratch of the CPU's kernels.
struct OnHost {
  explicit OnHost(AttentionShape given) : shape(given) {
    shape.q_stride = shape.H * shape.D, shape.kv_stride = shape.K * shape.D, shape.cudnn_parts = 0;
    scratch.resize(attention_scratch(shape, traits_of_cpu()));
  }
  AttentionShape shape;
  std::vector<float> scratch;
  std::shared_ptr<Stream> stream = make_host_stream();
  std::size_t rows() const { return shape.B * shape.T; }
};

template <class E>
void run_forward(const AttentionForwardCall& call) {
  OnHost host(call.shape);
  const AttentionShape& s = call.shape;
  std::memset(call.scratch, 0xff, cudnn_forward_workspace);
  const auto q = matrix<E>(call.q, host.rows(), s.H * s.D, s.q_stride).read(),
             k = matrix<E>(call.k, host.rows(), s.K * s.D, s.kv_stride).read(),
             v = matrix<E>(call.v, host.rows(), s.K * s.D, s.kv_stride).read();
  std::vector<E> out(q.size());
  std::vector<float> lse(s.B * s.H * s.T);
  attention_forward<E>(*host.stream, out.data(), lse.data(), q.data(), k.data(), v.data(), host.shape, host.scratch.data());
  matrix<E>(call.out, host.rows(), s.H * s.D, s.H * s.D).write(out);
  std::copy(lse.begin(), lse.end(), call.lse);
}

template <class E>
void run_backward(const AttentionBackwardCall& call, std::size_t heads) {
  OnHost host(call.shape);
  const AttentionShape& s = call.shape;
  const auto queries = [&](const void* data, std::size_t stride) { return matrix<E>(data, host.rows(), s.H * s.D, stride); };
  const auto keys = [&](const void* data) { return matrix<E>(data, host.rows(), s.K * s.D, s.kv_stride); };
  const auto q = queries(call.q, s.q_stride).read(), out = queries(call.out, heads * s.D).read(),
             d_out = queries(call.d_out, heads * s.D).read(), k = keys(call.k).read(), v = keys(call.v).read();
  const auto lse = matrix<float>(call.lse, s.B, s.H * s.T, heads * s.T).read();
  std::memset(call.scratch, 0xff, cudnn_workspace(s));
  std::vector<E> dq(q.size()), dk(k.size()), dv(v.size());
  attention_backward<E>(*host.stream, dq.data(), dk.data(), dv.data(), d_out.data(), out.data(), lse.data(), q.data(), k.data(),
                        v.data(), host.shape, host.scratch.data());
  queries(call.dq, s.q_stride).write(dq), keys(call.dk).write(dk), keys(call.dv).write(dv);
}

class CudnnDouble final : public CudnnAttention {
 public:
  CudnnDouble() {
    if (cuda_double::environment_number("FSDP_CUDNN_DOUBLE_FAILS", 0) != 0)
      throw CallError("cudnnCreate", "CUDNN_STATUS_NOT_INITIALIZED");
  }
  std::string version() const override {
    const std::uint64_t v = cuda_double::environment_number("FSDP_CUDNN_DOUBLE_VERSION", 92600);
    return format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }
  void prepare(DType type, const AttentionShape& s, std::size_t heads, bool backward) override {
    if (type == DType::f32 || s.D % 8 != 0 || s.positions || s.past > 0)
      die("cuDNN's double got a shape that cuDNN does not take");
    prepared_.emplace(type, s.B, s.T, s.H, s.K, s.D, s.window, heads, backward);
  }
  void forward(cudaStream_t stream, const AttentionForwardCall& call) override {
    check(call.type, call.shape, call.shape.H, false);
    check_workspace(call.scratch, cudnn_forward_workspace);
    cuda_double::give(cuda_double::find_stream(stream), [call](std::minstd_rand&) {
      call.type == DType::bf16 ? run_forward<bf16>(call) : run_forward<f16>(call);
    });
  }
  void backward(cudaStream_t stream, const AttentionBackwardCall& call, std::size_t heads) override {
    check(call.type, call.shape, heads, true);
    check_workspace(call.scratch, cudnn_workspace(call.shape));
    cuda_double::give(cuda_double::find_stream(stream), [call, heads](std::minstd_rand&) {
      call.type == DType::bf16 ? run_backward<bf16>(call, heads) : run_backward<f16>(call, heads);
    });
  }

 private:
  static void check_workspace(const float* workspace, std::size_t bytes) {
    if (reinterpret_cast<std::uintptr_t>(workspace) % cudnn_alignment != 0) die("cuDNN's workspace is not aligned");
    if (bytes > most_cudnn_workspace || cuda_double::place_of(workspace, bytes) != cuda_double::Place::device)
      die("cuDNN's workspace is too large, or not in the memory of a device");
  }
  /// Training prepares all plans before its first update: building one allocates memory.
  void check(DType type, const AttentionShape& s, std::size_t heads, bool backward) const {
    if (!prepared_.contains({type, s.B, s.T, s.H, s.K, s.D, s.window, heads, backward}))
      die("a plan of cuDNN was not prepared");
  }
  std::set<std::tuple<DType, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::uint32_t, std::size_t, bool>>
      prepared_;
};

}  // namespace

}  // namespace fsdp::kernels

extern "C" [[gnu::visibility("default")]] const fsdp::kernels::CudnnLibrary* fsdp_cudnn_library() {
  static const fsdp::kernels::CudnnLibrary library = {FSDP_VERSION, []() -> std::unique_ptr<fsdp::kernels::CudnnAttention> {
                                                        return std::make_unique<fsdp::kernels::CudnnDouble>();
                                                      }};
  return &library;
}
