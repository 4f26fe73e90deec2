// A device for tests with a thread for each stream: streams are ordered only by the events that they wait for, and each piece
// of work is delayed at random, depending on the seed. Like a GPU's memory, its memory may be accessed only by stream threads:
// if the processor has memory protection keys, host code that accesses it is killed at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/traits.hpp"
#include "kernels/threads.hpp"

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

/// Selects what runs the streams of a rank: its only thread; also a thread for communication; a thread for each stream; the
/// first GPU; or a GPU that no other rank uses. The GPU may be the double that uses threads (cuda_double/).
enum class Threads { one, communication, each_stream, of_gpu, of_own_gpu };
/// `seed` is the seed of a ThreadedDevice, or the number of the rank's own GPU. Throws std::runtime_error if there is no GPU.
std::unique_ptr<Device> make_device(Threads threads, std::uint64_t seed);

/// The traits of a run on this kind of device, with pieces of `piece_rows` rows if this is not 0.
inline DeviceTraits traits_for(DeviceKind kind, std::size_t piece_rows) {
  DeviceTraits traits = kind == DeviceKind::cuda ? cuda_traits() : kernels::traits_of_cpu();
  if (piece_rows > 0) traits.piece_rows = piece_rows, traits.logits_bytes = 1;
  return traits;
}

/// Under ThreadSanitizer lanes of a block take about twenty times as long, so tests run fewer cases.
#ifdef __SANITIZE_THREAD__
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif

/// Returns true if memory is guarded on this processor and in this build.
bool guards_memory();

}  // namespace fsdp::test
