// An NVIDIA GPU as a device, through the CUDA runtime. Part of libfsdp_cuda, which libfsdp loads when a GPU is requested: see
// cuda_library.hpp.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/runtime.hpp"
#include "device/device.hpp"

namespace fsdp {

/// Throws CallError with CUDA's error message unless the call succeeded.
void check_cuda(cudaError_t status, std::string_view call, std::source_location where = std::source_location::current());

/// Device::place() of a GPU: its PCI address, such as "0000:3b:00".
std::string place_of(const cudaDeviceProp& gpu);

/// submit() calls the work immediately on the calling thread; the kernels that the work launches run later on the GPU, in
/// order. If a kernel fails, a later synchronize() throws. One thread uses the stream; others may only call reached().
class CudaStream final : public Stream {
 public:
  /// If *look is not empty, waits of the host call it repeatedly. If *look throws, the wait ends with that
  /// exception.
  CudaStream(std::shared_ptr<const kernels::DeviceKernels> kernels, int priority, Buffer workspace,
             std::shared_ptr<const std::function<void()>> look);
  ~CudaStream() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  const kernels::DeviceKernels* kernels() const override { return kernels_.get(); }
  void submit(Work work) override { work.run(work.context, work.index); }
  Event record() override;
  void wait(Event event) override;
  bool reached(std::uint64_t number) override;
  void synchronize() override;
  void cancel() noexcept override {}  // the GPU finishes the work in its queue
  bool is_asynchronous() const override { return true; }
  void copy(void* to, const void* from, std::size_t bytes) override;
  std::int64_t mark() override;
  std::int64_t time_of(std::int64_t mark) const override;
  bool marks_later() const override { return true; }
  void begin_marks(bool wanted) override;

  /// Returns the handle for one more call that queues work. CUDA blocks the host in such a call while about 1,024 calls of a
  /// stream are pending, and a blocked host cannot see that a collective hangs. So while `most_pending` calls are pending, this
  /// waits and calls *look repeatedly.
  cudaStream_t next_call();
  /// The workspace of cuBLASLt for the matrix products of this stream.
  const Buffer& workspace() const { return workspace_; }

 private:
  std::shared_ptr<const kernels::DeviceKernels> kernels_;
  cudaStream_t handle_ = nullptr;
  const Buffer workspace_;
  const std::shared_ptr<const std::function<void()>> look_;
  static constexpr std::uint64_t most_pending = 512;
  std::uint64_t calls_ = 0;
  /// Recorded in turn, after each most_pending / 2 calls.
  cudaEvent_t halves_[2] = {};
  /// The CUDA events that record() returned with numbers from `first_` on; earlier events are done. CUDA events are created
  /// once and reused after each synchronize().
  std::vector<cudaEvent_t> events_;
  std::uint64_t first_ = 0, next_ = 0;
  std::mutex events_mutex_;  // of events_ and first_, which other threads read, too
  /// The CUDA events of mark(), which have time stamps. The first of them was recorded at the time began_ns_.
  std::vector<cudaEvent_t> marks_;
  std::size_t marked_ = 0;
  bool marking_ = false;
  std::int64_t began_ns_ = 0;
};

/// Casts a stream of this device.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

/// Makes the device for GPU number `index` of those that the process sees, and sets that GPU as the current one of the calling
/// thread. `libraries` is a text for messages: it names the libraries that `kernels` uses, such as "cuBLASLt 13.1.0".
std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<const kernels::DeviceKernels> kernels,
                                         std::string libraries);

/// Makes the waits of the host for all streams of this CUDA device call `look` repeatedly. If `look` throws, the wait
/// ends with that exception. An empty function stops these calls.
void look_while_waiting(Device& device, std::function<void()> look);

}  // namespace fsdp
