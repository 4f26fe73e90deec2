// What libfsdp finds in libfsdp_cuda: see device/cuda_library.hpp.
#include "device/cuda_library.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "device/cuda/cuda_device.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/row_functions.hpp"
#include "kernels/device_kernels.hpp"

namespace fsdp {

namespace {

class CudaKernels final : public kernels::DeviceKernels {
 public:
  void rows(Stream& stream, const std::type_info& type, const void* body, std::size_t rows) const override {
    const auto found = rows_.find(type);
    if (found == rows_.end())
      throw UserError(
          "an optimizer was added to this program that has no kernels for GPUs (libfsdp_cuda was compiled without its rule); train "
          "on the CPU, or add the rule to lib/kernels/rows/bodies.hpp");
    check_cuda(found->second(cuda_stream(stream).handle(), body, rows), "launching a row kernel");
  }
  void gemm(Stream& stream, const kernels::Product& product) const override {
    const CudaStream& on = cuda_stream(stream);
    products_.multiply(on.handle(), product, on.workspace(), on.workspace_bytes());
  }
  void attention_forward(Stream& stream, const kernels::AttentionForwardCall& call) const override {
    check_cuda(kernels::attention_forward_cuda(cuda_stream(stream).handle(), call), "launching attention");
  }
  void attention_backward(Stream& stream, const kernels::AttentionBackwardCall& call) const override {
    check_cuda(kernels::attention_backward_cuda(cuda_stream(stream).handle(), call), "launching attention's backward pass");
  }
  std::string gemm_description() const override { return products_.description(); }

 private:
  const std::unordered_map<std::type_index, kernels::CudaRowFunction> rows_ = kernels::cuda_row_functions();
  mutable kernels::CudaProducts products_;  // prepares what it meets for the first time
};

/// A device and what it computes with.
class DeviceWithKernels final : public Device {
 public:
  explicit DeviceWithKernels(int index) : device_(make_cuda_device(index, kernels_)) {}
  DeviceKind kind() const override { return device_->kind(); }
  std::string description() const override { return device_->description() + ", " + kernels_.gemm_description(); }
  Buffer allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  Buffer allocate_staging(std::size_t bytes) override { return device_->allocate_staging(bytes); }
  std::shared_ptr<Stream> make_stream(StreamUse use) override { return device_->make_stream(use); }
  bool communicates_at_once() const override { return device_->communicates_at_once(); }

 private:
  CudaKernels kernels_;
  std::unique_ptr<Device> device_;
};

}  // namespace

}  // namespace fsdp
