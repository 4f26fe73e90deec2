// Where memory lies and where kernels run. Everything above this folder names a device only through these types.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

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

/// A queue of work on one device. Work is done in the order in which it was given; when a call returns, a CPU stream has done
/// it, a CUDA stream has only taken it.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  /// Returns once everything given to this stream is done.
  virtual void synchronize() = 0;
  /// Kernels add to it; whoever measures sets it to zero.
  KernelTimes times;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// "CPU: AVX-512, 2 threads" or the GPU's name.
  virtual std::string description() const = 0;
  /// Throws UserError that says how much was asked for and how much there is.
  virtual Buffer allocate(std::size_t bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
};

/// The CPU this process runs on.
std::unique_ptr<Device> make_cpu_device();

/// Hands out consecutive pieces of one buffer and remembers the most that was in use.
class Arena {
 public:
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
  /// The piece at [offset, offset + bytes); counts as in use until given back.
  std::byte* acquire(std::size_t offset, std::size_t bytes);
  void give_back(std::size_t bytes);
  std::size_t peak_bytes() const { return peak_; }

 private:
  Buffer buffer_;
  std::size_t in_use_ = 0, peak_ = 0;
};

}  // namespace fsdp
