// Where memory lies and where kernels run. Everything above this folder names a device only through these types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "base/timer.hpp"

namespace fsdp {

enum class DeviceKind { cpu, cuda };

/// Memory of one device; freed by its destructor. Aligned to at least 64 bytes; filled with zeros.
class Buffer {
 public:
  Buffer() = default;
  /// Takes over `data`; `release` frees it.
  Buffer(std::byte* data, std::size_t bytes, void (*release)(std::byte*, std::size_t)) noexcept
      : data_(data), bytes_(bytes), release_(release) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_) release_(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void (*release_)(std::byte*, std::size_t) = nullptr;
};

/// Seconds that a stream's kernels took, for those kinds that are worth telling apart.
struct KernelTimes {
  double gemm = 0, attention = 0;
};

namespace kernels {
class DeviceKernels;
}
class Stream;

/// A point in the work of a stream: all that it had been given when the event was recorded.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t number = 0;
};

/// A piece of work: run(context, index). It owns nothing, so that giving it to a stream allocates nothing; whoever gives it
/// keeps `context` until the stream is done with it.
struct Work {
  void (*run)(void* context, std::size_t index) = nullptr;
  void* context = nullptr;
  std::size_t index = 0;
};

/// Thrown where somebody waits for a stream whose work has failed: a consequence, never the cause.
struct StreamFailed : std::exception {
  const char* what() const noexcept override { return "an operation on another stream failed"; }
};

/// A queue of work on one device. A stream does its work in the order in which it was given, and streams know nothing of each
/// other but the events that they wait for.
///
/// Three kinds differ in who does the work. An inline stream, the CPU's usual one, does it before submit() returns. A queueing
/// stream (QueueStream) has a thread that does it later. A CUDA stream calls it at once, and the kernels that the work gives to
/// the stream run later. Code above this folder never asks which, and is right for all.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  /// What the device computes with; null: the CPU's kernels.
  virtual const kernels::DeviceKernels* kernels() const { return nullptr; }
  /// Calls `work` after all that was given before, on the thread that calls this or on the stream's own.
  virtual void submit(Work work) = 0;
  /// The end of all that was given so far.
  virtual Event record() = 0;
  /// What is given from now on begins after the event, which is of this stream or of another one. An inline stream blocks the
  /// caller until then. Throws StreamFailed if the event will never be.
  virtual void wait(Event event) = 0;
  /// Returns once everything given to this stream is done, and throws what its work threw; then the stream is as new.
  virtual void synchronize() = 0;
  /// What has not begun will not be done; whoever waits for it gets StreamFailed. Not for what has begun.
  virtual void cancel() noexcept = 0;
  /// Whether submit() may return before the work is done.
  virtual bool is_asynchronous() const = 0;
  /// For work of this stream, as kernels are: copies bytes between memory of the device and of the host, either way or within
  /// one of them.
  virtual void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

  /// Marks this point of the stream's work, within work. time_of() says by now_ns() when the stream was there.
  virtual std::int64_t mark() { return now_ns(); }
  virtual std::int64_t time_of(std::int64_t mark) const { return mark; }
  /// Whether time_of() has answers only once the stream is idle, and only of what was given to it since begin_marks(true),
  /// which is called while it is idle: so does a GPU, whose marks cost time. Else marks are 0.
  virtual bool marks_later() const { return false; }
  virtual void begin_marks(bool /*wanted*/) {}

  /// What the work that is given next belongs to, as "block 3": for messages. It lives as long as the stream; null: nothing.
  const char* subject = nullptr;
  /// Kernels add to it; whoever measures sets it to zero.
  KernelTimes times;
  /// Seconds that the stream has waited for events since whoever measures set it to zero.
  double waited_s = 0;
};

/// What a stream is for: a device may run transfers on threads of their own, or with another priority.
enum class StreamUse { compute, communication };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// "CPU: AVX-512, 2 threads" or the GPU's name.
  virtual std::string description() const = 0;
  /// Where in its machine the device sits, as "0000:3b:00"; empty for the host. Ranks of a machine with the same place share
  /// one.
  virtual std::string place() const { return {}; }
  /// Throws UserError that says how much was asked for and how much there is.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Memory of the host that streams copy from and to while the host goes on.
  virtual Buffer allocate_staging(std::size_t bytes);
  /// Streams for one use may be one stream.
  virtual std::shared_ptr<Stream> make_stream(StreamUse use = StreamUse::compute) = 0;
  /// Whether two streams for communication may be at work at the same time: each then needs a group of ranks of its own, as the
  /// collectives of a group are done one after another.
  virtual bool communicates_at_once() const { return false; }
};

struct CpuDeviceOptions {
  /// Communication streams are one thread, beside the one that computes.
  bool communication_thread = false;
};

/// The CPU this process runs on.
std::unique_ptr<Device> make_cpu_device(CpuDeviceOptions options = {});

/// For what the host does beside any device: memory of its own, and a stream that does its work at once. allocate_host() throws
/// as Device::allocate() does.
Buffer allocate_host(std::size_t bytes);
std::shared_ptr<Stream> make_host_stream();

/// One buffer whose pieces are in use by turns; it remembers the most that was in use.
class Arena {
 public:
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
  /// The piece at [offset, offset + bytes).
  std::byte* at(std::size_t offset, std::size_t bytes) const;
  /// Counts so many bytes as in use, until they are given back.
  void acquire(std::size_t bytes);
  void give_back(std::size_t bytes);
  std::size_t peak_bytes() const { return peak_; }

 private:
  Buffer buffer_;
  std::size_t in_use_ = 0, peak_ = 0;
};

}  // namespace fsdp
