// The CPU as a device: its memory, and streams that do their work immediately or on a separate thread.
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "device/cpu/processor.hpp"
#include "device/cpu/queue_stream.hpp"
#include "device/device.hpp"

namespace fsdp {

namespace {

/// A stream that does its work immediately, on the calling thread.
class CpuStream final : public Stream {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  void submit(Work work) override { work.run(work.context, work.index); }
  Event record() override { return {this, 0}; }
  void wait(Event event) override {
    if (event.stream == this) return;
    const Timer timer;
    block_until(event);
    waited_s += timer.seconds();
  }
  void synchronize() override {}
  void cancel() noexcept override {}
  bool is_asynchronous() const override { return false; }
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuDeviceOptions options) : options_(options) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return "CPU with " + vector_instructions(); }

  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }

  std::shared_ptr<Stream> make_stream(StreamUse use) override {
    if (use == StreamUse::storage) return std::make_shared<QueueStream>("fsdp-storage");
    if (use == StreamUse::compute || !options_.communication_thread) return std::make_shared<CpuStream>();
    std::shared_ptr<Stream> one = communication_.lock();
    if (!one) communication_ = one = std::make_shared<QueueStream>("fsdp-comm");
    return one;
  }

 private:
  const CpuDeviceOptions options_;
  std::weak_ptr<Stream> communication_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(CpuDeviceOptions options) { return std::make_unique<CpuDevice>(options); }

/// The system fills the pages with zeros, and puts each page on the NUMA node of the thread that first writes to it.
Buffer allocate_host(std::size_t bytes) {
  if (bytes == 0) return {};
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw UserError(
        format("{} of memory could not be allocated (the machine has {} in total); use more ranks, a smaller `micro-batch` or "
               "`recomputation of activations`",
               format_bytes(static_cast<double>(bytes)),
               format_bytes(static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)))));
  madvise(data, bytes, MADV_HUGEPAGE);  // huge pages reduce the cost of first writes and TLB misses to a third
  return Buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p, std::size_t n) { munmap(p, n); });
}

Buffer Device::allocate_staging(std::size_t bytes) { return allocate_host(bytes); }

std::shared_ptr<Stream> make_host_stream() { return std::make_shared<CpuStream>(); }

}  // namespace fsdp
