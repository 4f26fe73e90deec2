// Devices: memory, and streams that run kernels. Code outside this folder uses a device only through these types.
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

/// Returns true for the CPU. Other devices have memory that the host cannot access, and their kernels run asynchronously. Code
/// outside this folder makes no other distinction between kinds.
constexpr bool is_host(DeviceKind kind) { return kind == DeviceKind::cpu; }

/// Memory of one device; freed by its destructor. Aligned to at least 64 bytes; filled with zeros.
class Buffer {
 public:
  Buffer() = default;
  /// Takes ownership of `data`; `release` frees it.
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

/// Seconds of a stream's kernels, for the kinds that are reported separately.
struct KernelTimes {
  double gemm = 0, attention = 0;
};

namespace kernels {
class DeviceKernels;
}
class Stream;

/// A point in the work of a stream: it is reached when all work given before record() is done.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t number = 0;
};

/// A piece of work: run(context, index). It owns nothing, so that submit() allocates nothing. `context` must stay valid until
/// the stream has done the work.
struct Work {
  void (*run)(void* context, std::size_t index) = nullptr;
  void* context = nullptr;
  std::size_t index = 0;
};

/// Thrown by a wait for a stream whose work has failed. It is always a consequence of another error.
struct StreamFailed : std::exception {
  const char* what() const noexcept override { return "an operation on another stream failed"; }
};

/// A queue of work on one device. A stream does its work in submission order. Streams are ordered with each other only by waits
/// for events.
///
/// There are three kinds. An inline stream, the default on a CPU, does the work before submit() returns. A queueing stream
/// (QueueStream) has a thread that does it later. A CUDA stream calls the work immediately, and the kernels that the work
/// launches run later. Code outside this folder does not depend on the kind.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  /// The kernels of the device; null: those of the CPU.
  virtual const kernels::DeviceKernels* kernels() const { return nullptr; }
  /// Calls `work` after all earlier work, on the calling thread or on the stream's own thread.
  virtual void submit(Work work) = 0;
  /// Records an event after all work given so far.
  virtual Event record() = 0;
  /// Makes all later work wait for the event, which may be of this stream or another one. An inline stream blocks the caller.
  /// Throws StreamFailed if the event can no longer be reached.
  virtual void wait(Event event) = 0;
  /// Returns when all work given to this stream is done. Throws the exception of its work, if any; after that the stream can be
  /// used again.
  virtual void synchronize() = 0;
  /// Drops work that has not begun; a wait for it throws StreamFailed. Work that has begun continues.
  virtual void cancel() noexcept = 0;
  /// Returns true if submit() may return before the work is done.
  virtual bool is_asynchronous() const = 0;
  /// To be called by work of this stream: copies bytes between device memory and host memory, in either direction, or within
  /// one of them.
  virtual void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

  /// To be called by work of this stream: marks this point. time_of() converts the mark to the time, by now_ns(), when the
  /// stream reached it.
  virtual std::int64_t mark() { return now_ns(); }
  virtual std::int64_t time_of(std::int64_t mark) const { return mark; }
  /// Returns true if time_of() works only when the stream is idle, and only for work given after begin_marks(true), which must
  /// be called while the stream is idle. This is so for a GPU, because its marks cost time. Without begin_marks(true) its marks
  /// are 0.
  virtual bool marks_later() const { return false; }
  virtual void begin_marks(bool /*wanted*/) {}

  /// The owner of the work that is given next, for messages: "block 3". Must live as long as the stream; null: none.
  const char* subject = nullptr;
  /// Kernels add their times; the reader resets them.
  KernelTimes times;
  /// Seconds that the stream has waited for events since the reader last reset it.
  double waited_s = 0;
};

/// The use of a stream: a device may give communication streams their own threads or another priority.
enum class StreamUse { compute, communication };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// "CPU: AVX-512, 2 threads" or the GPU's name.
  virtual std::string description() const = 0;
  /// The device's address in its machine, "0000:3b:00"; empty for the host. Ranks of a machine with the same address share a
  /// device.
  virtual std::string place() const { return {}; }
  /// Throws UserError with the requested and the available bytes.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Host memory that streams copy to and from asynchronously.
  virtual Buffer allocate_staging(std::size_t bytes);
  /// Calls with the same use may return the same stream.
  virtual std::shared_ptr<Stream> make_stream(StreamUse use = StreamUse::compute) = 0;
  /// Returns true if two communication streams may work concurrently. Each then needs its own group of ranks, because a group
  /// runs its collectives one after another.
  virtual bool communicates_at_once() const { return false; }
};

struct CpuDeviceOptions {
  /// Communication streams share one thread, separate from the computing thread.
  bool communication_thread = false;
};

/// The CPU that this process runs on.
std::unique_ptr<Device> make_cpu_device(CpuDeviceOptions options = {});

/// Memory of the host, and a stream that does its work immediately, for host work without a device. allocate_host() throws like
/// Device::allocate().
Buffer allocate_host(std::size_t bytes);
std::shared_ptr<Stream> make_host_stream();

/// One buffer in which pieces are used in turn. It records the largest number of bytes in use.
class Arena {
 public:
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
  /// The piece at [offset, offset + bytes).
  std::byte* at(std::size_t offset, std::size_t bytes) const;
  /// Counts `bytes` as in use, until give_back().
  void acquire(std::size_t bytes);
  void give_back(std::size_t bytes);
  std::size_t peak_bytes() const { return peak_; }

 private:
  Buffer buffer_;
  std::size_t in_use_ = 0, peak_ = 0;
};

}  // namespace fsdp
