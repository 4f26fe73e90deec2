#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "device/device.hpp"

namespace fsdp {

namespace {

class CpuStream final : public Stream {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  void synchronize() override {}
};

std::string instruction_set() {
  if (__builtin_cpu_supports("avx512f")) return "AVX-512";
  if (__builtin_cpu_supports("avx2")) return "AVX2";
  return "SSE4.2 or less";
}

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return "CPU with " + instruction_set(); }

  /// Pages come zeroed from the system and are touched by whoever writes them first.
  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      throw UserError(
          format("{} of memory could not be had (the machine has {} in all); use more ranks, a smaller `micro-batch` or "
                 "`recomputation of activations`",
                 format_bytes(static_cast<double>(bytes)),
                 format_bytes(static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)))));
    madvise(data, bytes, MADV_HUGEPAGE);  // where the system has them: the first touch costs a third, and so do look-ups
    return Buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p, std::size_t n) { munmap(p, n); });
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace fsdp
