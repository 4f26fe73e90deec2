// The entry point of libfsdp_cuda for libfsdp: see device/cuda_library.hpp.
#include "device/cuda_library.hpp"

#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/quantile.hpp"
#include "device/cuda/cuda_device.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/attention_blocks.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/row_functions.hpp"
#include "kernels/cudnn.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp {

namespace {

class CudaKernels final : public kernels::DeviceKernels {
 public:
  explicit CudaKernels(const cudaDeviceProp& device)
      : shared_bytes_(device.sharedMemPerBlockOptin), compute_capability_(10 * device.major + device.minor) {}

  void rows(Stream& stream, const std::type_info& type, const void* body, std::size_t rows) const override {
    const auto found = rows_.find(type);
    if (found == rows_.end())
      throw UserError(
          "an optimizer that was added to this program has no GPU kernels (lib/kernels/rows/bodies.hpp does not list its "
          "rule); train on the CPU");
    check_cuda(found->second(cuda_stream(stream).next_call(), body, rows), "launching a row kernel");
  }
  void gemm(Stream& stream, const kernels::Product& product) const override {
    CudaStream& on = cuda_stream(stream);
    products_.multiply(on.next_call(), product, on.workspace().data(), on.workspace().bytes());
  }
  bool takes(Stream& stream, const kernels::Product& product) const override {
    return products_.takes(product, cuda_stream(stream).workspace().bytes());
  }
  kernels::GemmAlgorithm fastest_algorithm(Stream& stream, const kernels::Product& product) const override {
    const std::size_t workspace_bytes = cuda_stream(stream).workspace().bytes();
    kernels::GemmAlgorithm fastest{};
    double least = HUGE_VAL;
    for (const kernels::GemmAlgorithm& algorithm : products_.suggested(product, workspace_bytes)) {
      products_.use(product, algorithm, workspace_bytes);
      gemm(stream, product);  // the first call may load the kernel
      stream.synchronize();
      stream.begin_marks(true);
      std::array<std::int64_t, 6> marks{};
      marks[0] = stream.mark();
      for (std::size_t i = 1; i < marks.size(); ++i) gemm(stream, product), marks[i] = stream.mark();
      stream.synchronize();
      std::vector<double> ns;
      for (std::size_t i = 1; i < marks.size(); ++i)
        ns.push_back(static_cast<double>(stream.time_of(marks[i]) - stream.time_of(marks[i - 1])));
      if (const double median = quantile(ns, 0.5); median < least) least = median, fastest = algorithm;
    }
    stream.begin_marks(false);
    return fastest;
  }
  void use_algorithm(Stream& stream, const kernels::Product& product, const kernels::GemmAlgorithm& algorithm) const override {
    products_.use(product, algorithm, cuda_stream(stream).workspace().bytes());
  }
  kernels::Cudnn load_cudnn() const override {
    return {cudnn().version(), compute_capability_ == 90 ? kernels::most_cudnn_head_size : 128};
  }
  void prepare_attention(DType type, const kernels::AttentionShape& shape, bool backward) const override {
    if (shape.cudnn_parts == 0) return check_head_size(type, shape.D, backward);
    cudnn().prepare(type, shape, shape.H, false);
    if (backward) cudnn().prepare(type, part_of_heads(shape, shape.cudnn_parts), shape.H, true);
  }
  void attention_forward(Stream& stream, const kernels::AttentionForwardCall& call) const override {
    if (uses_cudnn(call.shape, call.mask)) {
      kernels::AttentionForwardCall by_cudnn = call;
      by_cudnn.scratch = aligned_workspace(call.scratch);
      return cudnn().forward(cuda_stream(stream).next_call(), by_cudnn);
    }
    check_head_size(call.type, call.shape.D, false);
    check_cuda(kernels::attention_forward_cuda(cuda_stream(stream).next_call(), call), "launching attention");
  }
  void attention_backward(Stream& stream, const kernels::AttentionBackwardCall& call) const override {
    if (uses_cudnn(call.shape, call.mask)) return backward_by_cudnn(stream, call);
    check_head_size(call.type, call.shape.D, true);
    check_cuda(kernels::attention_backward_cuda(cuda_stream(stream).next_call(), call), "launching attention's backward pass");
  }
  std::string gemm_description() const override { return products_.description(); }

 private:
  /// Throws UserError if our kernels cannot compute attention with heads of D numbers of this type.
  void check_head_size(DType type, std::size_t D, bool backward) const {
    if (D > kernels::most_head_size_on_cuda)
      throw UserError(format("a head size of {} is too large for the GPU kernels (at most {}); train on the CPU", D,
                             kernels::most_head_size_on_cuda));
    const std::size_t needed = kernels::attention_shared_bytes(D, backward);
    if (!kernels::tensor_attention_takes(type, D) && needed > shared_bytes_)
      throw UserError(
          format("heads of {} numbers in {} need {} of shared memory in a block, and this GPU has {}; use another GPU (an A100 "
                 "or H100 has enough), train on the CPU{}",
                 D, name_of(type), format_bytes(static_cast<double>(needed)), format_bytes(static_cast<double>(shared_bytes_)),
                 kernels::tensor_attention_takes(DType::bf16, D) ? ", or in bf16" : ""));
  }
  static bool uses_cudnn(const kernels::AttentionShape& shape, const kernels::DropoutMask& mask) {
    return shape.cudnn_parts > 0 && mask.dropped == 0;
  }
  kernels::CudnnAttention& cudnn() const {
    if (!cudnn_) cudnn_ = kernels::load_cudnn_library();
    return *cudnn_;
  }
  /// Returns the first aligned address of the scratch.
  static float* aligned_workspace(float* scratch) {
    return reinterpret_cast<float*>(round_up(reinterpret_cast<std::uintptr_t>(scratch), kernels::cudnn_alignment));
  }
  /// Computes the heads in shape.cudnn_parts calls, which use the workspace one after another.
  void backward_by_cudnn(Stream& stream, kernels::AttentionBackwardCall call) const {
    const std::size_t heads = call.shape.H, parts = call.shape.cudnn_parts;
    call.scratch = aligned_workspace(call.scratch);
    call.shape = kernels::part_of_heads(call.shape, parts);
    const std::size_t queries = call.shape.H * call.shape.D * size_of(call.type),
                      keys = call.shape.K * call.shape.D * size_of(call.type);
    const auto move = []<class Void>(Void*& pointer, std::size_t bytes) {
      using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
      pointer = static_cast<Byte*>(pointer) + bytes;
    };
    for (std::size_t part = 0; part < parts; ++part) {
      cudnn().backward(cuda_stream(stream).next_call(), call, heads);
      move(call.q, queries), move(call.dq, queries), move(call.out, queries), move(call.d_out, queries);
      move(call.k, keys), move(call.v, keys), move(call.dk, keys), move(call.dv, keys);
      call.lse += call.shape.H * call.shape.T;
    }
  }

  const std::size_t shared_bytes_;
  const int compute_capability_;                            // 90 for an H100
  mutable std::unique_ptr<kernels::CudnnAttention> cudnn_;  // mutable, because it is loaded at first use
  const std::unordered_map<std::type_index, kernels::CudaRowFunction> rows_ = kernels::cuda_row_functions();
  mutable kernels::CudaProducts products_;  // mutable, because products of new shapes are added to its cache
};

/// Returns the indices of the visible GPUs that fsdp supports. Asynchronous copies and bf16 products need compute capability
/// 8.0. If there are no such GPUs, sets *why.
std::vector<int> find_usable(std::string* why) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    *why = cudaGetErrorString(status);
    cudaGetLastError();
    return {};
  }
  std::vector<int> usable;
  std::string too_old;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    if (properties.major >= 8)
      usable.push_back(index);
    else if (too_old.empty())
      too_old = format("{} has compute capability {}.{}, and fsdp needs {}", properties.name, properties.major,
                       properties.minor, least_compute_capability);
  }
  if (usable.empty()) *why = too_old;
  return usable;
}

int device_count(std::string* why) { return static_cast<int>(find_usable(why).size()); }

std::unique_ptr<Device> make_device(int number) {
  std::string why;
  const int index = find_usable(&why).at(static_cast<std::size_t>(number));
  check_cuda(cudaSetDevice(index), "cudaSetDevice");  // cuBLASLt is created for the current device
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  auto kernels = std::make_shared<CudaKernels>(properties);
  std::string libraries = kernels->gemm_description();
  return make_cuda_device(index, std::move(kernels), std::move(libraries));
}

std::vector<std::string> places() {
  std::string why;
  std::vector<std::string> all;
  for (const int index : find_usable(&why)) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    all.push_back(place_of(properties));
  }
  return all;
}

}  // namespace

}  // namespace fsdp

extern "C" [[gnu::visibility("default")]] const fsdp::CudaLibrary* fsdp_cuda_library() {
  static const fsdp::CudaLibrary library = {FSDP_VERSION, fsdp::device_count, fsdp::make_device, fsdp::places};
  return &library;
}
