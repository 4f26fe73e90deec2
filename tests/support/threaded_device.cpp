#include "support/threaded_device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "device/cpu/queue_stream.hpp"
#include "device/cuda_library.hpp"
#include "support/gpu.hpp"

namespace fsdp::test {

namespace {

/// The protection key of all devices' memory. Linux starts threads without access to it; pkey_set() gives a thread access.
/// Negative if the processor has no keys.
int memory_key() {
  static const int key = ::pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

}  // namespace

bool guards_memory() { return memory_key() >= 0; }

Buffer ThreadedDevice::allocate(std::size_t bytes) {
  Buffer buffer = allocate_host(bytes);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > 0 && guards_memory() &&
      ::pkey_mprotect(buffer.data(), (bytes + page - 1) / page * page, PROT_READ | PROT_WRITE, memory_key()) != 0)
    throw std::runtime_error("memory could not be guarded");
  return buffer;
}

std::shared_ptr<Stream> ThreadedDevice::make_stream(StreamUse) {
  std::minstd_rand dice(static_cast<unsigned>(seed_ * 16 + ++streams_));
  QueueStreamHooks hooks;
  hooks.at_start = [] {
    if (guards_memory()) ::pkey_set(memory_key(), 0);
  };
  hooks.before_work = [dice]() mutable {
    if (dice() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 100));
  };
  return std::make_shared<QueueStream>("test-stream", std::move(hooks));
}

std::unique_ptr<Device> make_device(Threads threads, std::uint64_t seed) {
  if (threads == Threads::each_stream) return std::make_unique<ThreadedDevice>(seed);
  if (threads == Threads::of_gpu || threads == Threads::of_own_gpu) {
    const int index = threads == Threads::of_gpu || shares_gpu() ? 0 : static_cast<int>(seed);
    if (gpus_or_skip(index + 1) <= index) throw std::runtime_error("no GPU");
    std::string why;
    return find_cuda_library(&why)->make_device(index);
  }
  return make_cpu_device({.communication_thread = threads == Threads::communication});
}

}  // namespace fsdp::test
