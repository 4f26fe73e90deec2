#include "device/cuda/cuda_device.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "device/cpu/queue_stream.hpp"
#include "device/traits.hpp"

namespace fsdp {

void check_cuda(cudaError_t status, std::string_view call, std::source_location where) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, because the exception reports it
  throw CallError(call, cudaGetErrorString(status), where);
}

CudaStream::CudaStream(std::shared_ptr<const kernels::DeviceKernels> kernels, int priority, Buffer workspace,
                       std::shared_ptr<const std::function<void()>> look)
    : kernels_(std::move(kernels)), workspace_(std::move(workspace)), look_(std::move(look)) {
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority");
  for (cudaEvent_t& half : halves_)
    check_cuda(cudaEventCreateWithFlags(&half, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(handle_);
  for (const auto* events : {&events_, &marks_})
    for (cudaEvent_t event : *events) cudaEventDestroy(event);
  for (cudaEvent_t half : halves_) cudaEventDestroy(half);
  cudaStreamDestroy(handle_);
}

namespace {

/// Waits until `query` reports that all work is done. The host waits about once per update, so it may sleep between two
/// queries.
template <class Query>
void look_until_done(const std::function<void()>& look, std::string_view call, const Query& query) {
  cudaError_t status = query();
  for (; status == cudaErrorNotReady; status = query()) {
    cudaGetLastError();  // CUDA also stores "not ready" as an error, which the next launch would report
    if (look) look();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  check_cuda(status, call);
}

}  // namespace

cudaStream_t CudaStream::next_call() {
  constexpr std::uint64_t half_of_them = most_pending / 2;
  if (++calls_ % half_of_them == 0) {
    cudaEvent_t const half = halves_[calls_ / half_of_them % 2];  // recorded `most_pending` calls ago, or never
    look_until_done(*look_, "cudaEventQuery", [half] { return cudaEventQuery(half); });
    check_cuda(cudaEventRecord(half, handle_), "cudaEventRecord");
  }
  return handle_;
}

Event CudaStream::record() {
  const std::size_t index = next_ - first_;
  if (index == events_.size()) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    const std::lock_guard lock(events_mutex_);
    events_.push_back(event);
  }
  check_cuda(cudaEventRecord(events_[index], next_call()), "cudaEventRecord");
  return {this, next_++};
}

void CudaStream::wait(Event event) {
  if (event.stream == this) return;
  if (is_host(event.stream->kind()))  // a storage stream: CUDA cannot wait for it, so the host does
    return look_until_done(*look_, "a wait for a storage stream",
                           [event] { return event.stream->reached(event.number) ? cudaSuccess : cudaErrorNotReady; });
  const CudaStream& other = cuda_stream(*event.stream);
  if (event.number < other.first_) return;
  check_cuda(cudaStreamWaitEvent(next_call(), other.events_[event.number - other.first_], 0), "cudaStreamWaitEvent");
}

bool CudaStream::reached(std::uint64_t number) {
  const std::lock_guard lock(events_mutex_);
  if (number < first_) return true;
  const cudaError_t status = cudaEventQuery(events_[number - first_]);
  if (status == cudaErrorNotReady) return cudaGetLastError(), false;  // CUDA also stores "not ready" as an error
  check_cuda(status, "cudaEventQuery");
  return true;
}

/// First queries the stream, so that cudaStreamSynchronize() is not called if all work is already done.
void CudaStream::synchronize() {
  const auto query = [this] { return cudaStreamQuery(handle_); };
  if (*look_) {
    look_until_done(*look_, "cudaStreamQuery", query);
  } else if (query() != cudaSuccess) {
    cudaGetLastError();  // clears "not ready"
    check_cuda(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
  }
  const std::lock_guard lock(events_mutex_);
  first_ = next_;
}

void CudaStream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, next_call()), "cudaMemcpyAsync");
}

std::int64_t CudaStream::mark() {
  if (!marking_) return 0;
  if (marked_ == marks_.size()) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    marks_.push_back(event);
  }
  check_cuda(cudaEventRecord(marks_[marked_], next_call()), "cudaEventRecord");
  return static_cast<std::int64_t>(marked_++);
}

std::int64_t CudaStream::time_of(std::int64_t mark) const {
  if (!marking_) return 0;
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, marks_[0], marks_[static_cast<std::size_t>(mark)]), "cudaEventElapsedTime");
  return began_ns_ + static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
}

void CudaStream::begin_marks(bool wanted) {
  marking_ = wanted;
  marked_ = 0;
  mark();
  began_ns_ = now_ns();
}

std::string place_of(const cudaDeviceProp& gpu) {
  return format("{:04x}:{:02x}:{:02x}", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
}

namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::shared_ptr<const kernels::DeviceKernels> kernels, std::string libraries)
      : index_(index), kernels_(std::move(kernels)), libraries_(std::move(libraries)) {
    check_cuda(cudaSetDevice(index), format("cudaSetDevice({})", index));
    check_cuda(cudaGetDeviceProperties(&properties_, index), "cudaGetDeviceProperties");
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override {
    return format("{} (compute capability {}.{}, {}), {}", properties_.name, properties_.major, properties_.minor,
                  format_bytes(static_cast<double>(properties_.totalGlobalMem)), libraries_);
  }

  std::string place() const override { return place_of(properties_); }

  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw too_little_memory(bytes);
    }
    check_cuda(status, "cudaMalloc");
    Buffer buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p, std::size_t) { cudaFree(p); });
    check_cuda(cudaMemset(data, 0, bytes), "cudaMemset");
    // Other streams do not wait for cudaMemset.
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return buffer;
  }

  void require_free(std::size_t bytes) const override {
    if (free_bytes() < bytes) throw too_little_memory(bytes);
  }

  std::size_t free_bytes() const override {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

  Buffer allocate_staging(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* data = nullptr;
    const cudaError_t status = cudaMallocHost(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw UserError(
          format("{} of pinned host memory could not be allocated (it is needed for copies to and from the GPU, and the system "
                 "may limit it); offload less, use more nodes, or give the job more memory",
                 format_bytes(static_cast<double>(bytes))));
    }
    check_cuda(status, "cudaMallocHost");
    Buffer buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p, std::size_t) { cudaFreeHost(p); });
    std::memset(data, 0, bytes);
    return buffer;
  }

  std::shared_ptr<Stream> make_stream(StreamUse use) override {
    int least = 0, greatest = 0;  // a smaller number is a higher priority
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    const bool computes = use == StreamUse::compute;
    const bool stores = use == StreamUse::storage;
    auto stream =
        std::make_shared<CudaStream>(kernels_, computes ? least : greatest, allocate(computes ? cuda_traits().gemm_bytes : 0),
                                     stores ? std::make_shared<std::function<void()>>() : look_);
    if (!stores) return stream;
    return std::make_shared<QueueStream>(
        "fsdp-storage",
        QueueStreamHooks{.at_start = [index = index_] { check_cuda(cudaSetDevice(index), format("cudaSetDevice({})", index)); },
                         .copy =
                             [stream = std::move(stream)](void* to, const void* from, std::size_t bytes) {
                               stream->copy(to, from, bytes);
                               stream->synchronize();
                             }});
  }

  bool communicates_at_once() const override { return true; }

  void look_while_waiting(std::function<void()> look) { *look_ = std::move(look); }

 private:
  static UserError too_little_memory(std::size_t bytes) {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return UserError(
        format("{} of GPU memory could not be allocated ({} of {} are free); use more ranks, a smaller `micro-batch` or "
               "`recomputation of activations`",
               format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(free)),
               format_bytes(static_cast<double>(total))));
  }

  const int index_;
  std::shared_ptr<const kernels::DeviceKernels> kernels_;
  const std::string libraries_;
  const std::shared_ptr<std::function<void()>> look_ = std::make_shared<std::function<void()>>();
  cudaDeviceProp properties_{};
};

}  // namespace

void look_while_waiting(Device& device, std::function<void()> look) {
  static_cast<CudaDevice&>(device).look_while_waiting(std::move(look));
}

std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<const kernels::DeviceKernels> kernels,
                                         std::string libraries) {
  return std::make_unique<CudaDevice>(index, std::move(kernels), std::move(libraries));
}

}  // namespace fsdp
