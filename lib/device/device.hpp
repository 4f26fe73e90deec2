// Devices: memory, and streams that run kernels. Code outside this folder uses a device only through these types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "base/system.hpp"
#include "base/timer.hpp"

namespace fsdp {

enum class DeviceKind { cpu, cuda };

/// Returns true for the CPU. The memory of other devices cannot be accessed by the host, and their kernels run asynchronously.
/// Code outside this folder distinguishes kinds only by this function, except code for a library of one kind (NCCL, NVML).
constexpr bool is_host(DeviceKind kind) { return kind == DeviceKind::cpu; }

/// Memory of one device, aligned to at least 64 bytes and initially zero. The destructor frees it.
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

/// Seconds that a stream has spent in matrix products and in attention, which are reported separately.
struct KernelTimes {
  double gemm = 0, attention = 0;
};

namespace kernels {
class DeviceKernels;
}
class Stream;

/// A point in the work of a stream. It is reached when all work that was submitted before record() is done.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t number = 0;
};

/// A piece of work for a stream, the call run(context, index). A Work has only plain pointers, so that submit() allocates no
/// memory. `context` must stay valid until the stream has done the work.
struct Work {
  void (*run)(void* context, std::size_t index) = nullptr;
  void* context = nullptr;
  std::size_t index = 0;
};

/// Thrown by a wait for a stream whose work has failed. The cause is always another exception.
struct StreamFailed : std::exception {
  const char* what() const noexcept override { return "an operation on another stream failed"; }
};

/// A queue of work on one device. A stream does its work in submission order. Only waits for events order the work of different
/// streams.
///
/// There are three kinds of streams. An inline stream, the default on a CPU, does the work before submit() returns. A queueing
/// stream (QueueStream) has a thread that does the work later. A CUDA stream calls the work before submit() returns, but the
/// kernels that the work launches run later. Code outside this folder does not depend on the kind, and streams of different
/// kinds can wait for each other.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  /// The kernels of the device. If null, the kernels of the CPU are used.
  virtual const kernels::DeviceKernels* kernels() const { return nullptr; }
  /// Calls `work` after all earlier work, on the calling thread or on the stream's own thread.
  virtual void submit(Work work) = 0;
  /// Returns an event that is reached when all work submitted so far is done.
  virtual Event record() = 0;
  /// Makes all later work wait for the event, which may belong to this stream or another one. An inline stream blocks the
  /// caller, and so does a CUDA stream if the event belongs to a queueing stream. Throws StreamFailed if the event can no
  /// longer be reached.
  virtual void wait(Event event) = 0;
  /// Returns true if event `number` of this stream is reached. Throws StreamFailed if it can no longer be reached. Any thread
  /// may call this. All events of an inline stream are reached.
  virtual bool reached(std::uint64_t /*number*/) { return true; }
  /// Returns when all submitted work is done. If work has thrown an exception, rethrows it; the stream can then be used again.
  virtual void synchronize() = 0;
  /// Drops work that has not begun; waits for that work throw StreamFailed. Work that has begun continues.
  virtual void cancel() noexcept = 0;
  /// Returns true if submit() may return before the work is done.
  virtual bool is_asynchronous() const = 0;
  /// Copies bytes within or between device memory and host memory. Call it from work of this stream.
  virtual void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

  /// Marks this point in the stream's work. Call it from work of this stream. time_of() returns the time, by the clock of
  /// now_ns(), at which the stream reached the mark.
  virtual std::int64_t mark() { return now_ns(); }
  virtual std::int64_t time_of(std::int64_t mark) const { return mark; }
  /// Returns true if begin_marks(true) must enable marks, and if time_of() can read marks only while the stream is idle. A
  /// GPU's stream returns true, because its marks cost time; until begin_marks(true) is called, they are 0. Call begin_marks()
  /// only while the stream is idle.
  virtual bool marks_later() const { return false; }
  virtual void begin_marks(bool /*wanted*/) {}

  /// The name of the model part whose work is submitted next, such as "block 3". Messages contain this name. The text must live
  /// as long as the stream. Null: no name.
  const char* subject = nullptr;
  /// Kernels add their times here. Code that reads the times also resets them.
  KernelTimes times;
  /// Seconds that the stream has waited for events. Code that reads this number also resets it.
  double waited_s = 0;
};

/// What a stream is used for. A device may give communication streams their own thread or another priority. The work of a
/// storage stream reads or writes a file, so it has a thread of its own on every kind of device.
enum class StreamUse { compute, communication, storage };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// Returns a text for messages, such as "CPU: AVX-512, 2 threads". The text for a GPU begins with the GPU's name.
  virtual std::string description() const = 0;
  /// The device's PCI address in its machine, "0000:3b:00"; empty for the CPU. Two ranks of a machine share a device if their
  /// devices have the same address.
  virtual std::string place() const { return {}; }
  /// Throws UserError if there is too little memory; the message has the requested and the existing bytes.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Throws the same error as allocate() if less memory than `bytes` is free. Does nothing on a CPU, where nobody can know.
  virtual void require_free(std::size_t /*bytes*/) const {}
  /// The memory that is free now; on a CPU, that of the machine.
  virtual std::size_t free_bytes() const { return available_memory_bytes(); }
  /// Allocates host memory for asynchronous copies to and from the device.
  virtual Buffer allocate_staging(std::size_t bytes);
  /// Returns a stream. Two calls with the same `use` may return the same stream.
  virtual std::shared_ptr<Stream> make_stream(StreamUse use = StreamUse::compute) = 0;
  /// Returns true if two communication streams may run collectives at the same time. Each stream then needs its own group of
  /// ranks, because a group runs its collectives one after another.
  virtual bool communicates_at_once() const { return false; }
};

struct CpuDeviceOptions {
  /// If true, all communication streams are one stream with its own thread. If false, the calling thread does their work.
  bool communication_thread = false;
};

/// The CPU that this process runs on.
std::unique_ptr<Device> make_cpu_device(CpuDeviceOptions options = {});

/// Host memory and an inline stream, for work that needs no device. allocate_host() throws the same errors as
/// Device::allocate().
Buffer allocate_host(std::size_t bytes);
std::shared_ptr<Stream> make_host_stream();

}  // namespace fsdp
