// A device for tests whose every stream has a thread: nothing but the events that a stream waits for keeps it in order with
// the others, and each piece of work is held up at random, as the seed says. Its memory may be touched by stream threads alone,
// as a GPU's: where the processor has memory protection keys, host code that touches it dies at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.hpp"

namespace fsdp::test {

class ThreadedDevice final : public Device {
 public:
  explicit ThreadedDevice(std::uint64_t seed) : seed_(seed) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return "CPU, with a thread for each stream"; }
  Buffer allocate(std::size_t bytes) override;
  std::shared_ptr<Stream> make_stream(StreamUse use) override;
  bool communicates_at_once() const override { return true; }

 private:
  std::uint64_t seed_;
  std::uint64_t streams_ = 0;
};

/// Who does the work of the streams of a rank: its one thread, another one for communication, one for each stream, or a GPU,
/// which may be the double that is made of threads (cuda_double/): the first one, or one that no other rank has.
enum class Threads { one, communication, each_stream, of_gpu, of_own_gpu };
/// `seed` is that of a ThreadedDevice, or the number of a GPU that is the rank's own. Throws std::runtime_error where there is
/// no GPU.
std::unique_ptr<Device> make_device(Threads threads, std::uint64_t seed);

/// Under ThreadSanitizer, where lanes of a block take some twenty times as long, tests do less of the same.
#ifdef __SANITIZE_THREAD__
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif

/// Whether memory is guarded, here and in this build.
bool guards_memory();

}  // namespace fsdp::test
