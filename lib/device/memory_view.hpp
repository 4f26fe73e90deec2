// A view of device memory or of a storage, for code that does not run on a stream, such as saving. The view reads and writes
// through copies. If the host can access the bytes directly (host() is not null), no copy is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "device/storage.hpp"

namespace fsdp {

class MemoryView {
 public:
  MemoryView() = default;
  /// A view of host memory.
  explicit MemoryView(std::span<std::byte> memory) : address_(memory.data()), bytes_(memory.size()) {}
  /// A view of memory that the work of `stream` uses. While the view is used, the stream must not access these bytes.
  MemoryView(std::span<std::byte> memory, Stream& stream) : MemoryView(memory) { stream_ = &stream; }
  /// A view of `bytes` bytes of `storage`, from byte `begin` on. `stream` may be null if the storage is host memory.
  MemoryView(Storage& storage, std::size_t begin, std::size_t bytes, Stream* stream)
      : address_(storage.address() ? storage.address() + begin : nullptr),
        bytes_(bytes),
        stream_(stream),
        storage_(&storage),
        begin_(begin) {}

  std::size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  /// The first byte if the host may access it directly, else nullptr.
  std::byte* host() const { return stream_ && stream_->is_asynchronous() ? nullptr : address_; }
  /// Bytes [begin, begin + count).
  MemoryView part(std::size_t begin, std::size_t count) const;
  /// Copies bytes [begin, begin + out.size()) to the host.
  void read(std::size_t begin, std::span<std::byte> out) const;
  void write(std::size_t begin, std::span<const std::byte> values) const;
  /// Sets bytes [begin, end) to zero.
  void clear(std::size_t begin, std::size_t end) const;

  /// Calls f(const T*, n) for the `count` numbers from byte `begin` on. If the host can access the numbers, f is called once;
  /// otherwise f is called for each copied piece.
  template <class T, class F>
  void visit(std::size_t begin, std::size_t count, F&& f) const {
    if (const std::byte* const bytes = host()) return f(reinterpret_cast<const T*>(bytes + begin), count);
    std::vector<T> piece(std::min(count, most_at_once));
    for (std::size_t at = 0; at < count; at += piece.size()) {
      piece.resize(std::min(piece.size(), count - at));
      read(begin + at * sizeof(T), std::as_writable_bytes(std::span(piece)));
      f(static_cast<const T*>(piece.data()), piece.size());
    }
  }

 private:
  static constexpr std::size_t most_at_once = std::size_t{1} << 20;
  std::byte* address_ = nullptr;  // null if the bytes are in a storage without an address, from byte begin_ on
  std::size_t bytes_ = 0;
  Stream* stream_ = nullptr;
  Storage* storage_ = nullptr;
  std::size_t begin_ = 0;
};

/// Runs `job()` as work of the stream, and waits for it.
template <class Job>
void on_stream(Stream& stream, const Job& job) {
  stream.submit({[](void* context, std::size_t) { (*static_cast<const Job*>(context))(); }, const_cast<Job*>(&job)});
  stream.synchronize();
}

}  // namespace fsdp
