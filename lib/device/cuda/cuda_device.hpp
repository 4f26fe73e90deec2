// A GPU of NVIDIA's, by the CUDA runtime. Part of libfsdp_cuda, which libfsdp loads when a GPU is wanted: see cuda_library.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <source_location>
#include <string_view>
#include <vector>

#include "device/device.hpp"

namespace fsdp {

/// Throws CallError with CUDA's own words unless the call succeeded.
void check_cuda(cudaError_t status, std::string_view call, std::source_location where = std::source_location::current());

/// Work is called at once, by whoever gives it, and what it queues runs on the GPU, in order. Errors of kernels come out where
/// somebody waits. For the thread that made it.
class CudaStream final : public Stream {
 public:
  /// The host's waits call *look again and again, where it is not empty, and throw what it throws.
  CudaStream(std::shared_ptr<const kernels::DeviceKernels> kernels, int priority, Buffer workspace,
             std::shared_ptr<const std::function<void()>> look);
  ~CudaStream() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  const kernels::DeviceKernels* kernels() const override { return kernels_.get(); }
  void submit(Work work) override { work.run(work.context, work.index); }
  Event record() override;
  void wait(Event event) override;
  void synchronize() override;
  void cancel() noexcept override {}  // what has been queued is the GPU's
  bool is_asynchronous() const override { return true; }
  void copy(void* to, const void* from, std::size_t bytes) override;
  std::int64_t mark() override;
  std::int64_t time_of(std::int64_t mark) const override;
  bool marks_later() const override { return true; }
  void begin_marks(bool wanted) override;

  cudaStream_t handle() const { return handle_; }
  /// What the stream's products work in.
  const Buffer& workspace() const { return workspace_; }

 private:
  std::shared_ptr<const kernels::DeviceKernels> kernels_;
  cudaStream_t handle_ = nullptr;
  const Buffer workspace_;
  const std::shared_ptr<const std::function<void()>> look_;
  /// Events from number `first_` on; those before are done. They are made once, and used again after each synchronize().
  std::vector<cudaEvent_t> events_;
  std::uint64_t first_ = 0, next_ = 0;
  /// Events with times; the first is the beginning, at began_ns_.
  std::vector<cudaEvent_t> marks_;
  std::size_t marked_ = 0;
  bool marking_ = false;
  std::int64_t began_ns_ = 0;
};

/// The stream of CUDA that a stream of this device is.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

/// Device `index` of those that the process sees, which becomes the current one of the calling thread; it computes with
/// `kernels`, which use `libraries`, as "cuBLASLt 13.1.0".
std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<const kernels::DeviceKernels> kernels,
                                         std::string libraries);

/// Waits of the host for any stream of `device`, which is one of CUDA's, call `look` again and again from now on, and throw
/// what it throws; an empty one ends that.
void look_while_waiting(Device& device, std::function<void()> look);

}  // namespace fsdp
