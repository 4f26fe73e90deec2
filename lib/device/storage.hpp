// The bytes that a rank has in one space of a plan (plan/plan.hpp). Memory has an address. A file has none: its bytes can only
// be copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/device.hpp"

namespace fsdp {

/// The bytes that were read from a disk and written to it.
struct DiskTraffic {
  std::uint64_t read = 0, written = 0;
  bool any() const { return read > 0 || written > 0; }
  bool operator==(const DiskTraffic&) const = default;
};

/// Bytes that are zero at first. Call read() and write() from work of `stream`; the other side is memory of the device or the
/// host. Two streams may copy different bytes at the same time; a file also needs them in different tiles. If a file fails,
/// they throw a RunError that names its folder.
class Storage {
 public:
  virtual ~Storage() = default;
  /// The address of the first byte, aligned to 64 bytes; null if the bytes can only be copied.
  virtual std::byte* address() const { return nullptr; }
  /// Copy `bytes` bytes of the storage, from byte `begin` on.
  virtual void read(Stream& stream, std::size_t begin, void* to, std::size_t bytes) = 0;
  virtual void write(Stream& stream, std::size_t begin, const void* from, std::size_t bytes) = 0;
  virtual DiskTraffic disk_traffic() const { return {}; }
  /// The measured size of the file; 0: the storage is memory.
  virtual std::size_t file_bytes() const { return 0; }
};

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(Buffer memory) : memory_(std::move(memory)) {}
  std::byte* address() const override { return memory_.data(); }
  void read(Stream& stream, std::size_t begin, void* to, std::size_t bytes) override {
    stream.copy(to, memory_.data() + begin, bytes);
  }
  void write(Stream& stream, std::size_t begin, const void* from, std::size_t bytes) override {
    stream.copy(memory_.data() + begin, from, bytes);
  }

 private:
  Buffer memory_;
};

}  // namespace fsdp
