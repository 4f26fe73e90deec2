// Memory that streams work on, for code that does not run on one: it reads and writes through copies. Where the host may touch
// the memory itself (host() says so), such code may leave out the copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "device/device.hpp"

namespace fsdp {

class MemoryView {
 public:
  MemoryView() = default;
  /// Memory of the host.
  explicit MemoryView(std::span<std::byte> memory) : memory_(memory) {}
  /// Memory that is given to `stream`'s work. The stream is idle, or its work leaves these bytes alone, while a view is used.
  MemoryView(std::span<std::byte> memory, Stream& stream) : memory_(memory), stream_(&stream) {}

  std::size_t bytes() const { return memory_.size(); }
  bool empty() const { return memory_.empty(); }
  /// The first byte, where the host may touch it; else nullptr.
  std::byte* host() const { return stream_ && stream_->is_asynchronous() ? nullptr : memory_.data(); }
  /// Bytes [begin, begin + count).
  MemoryView part(std::size_t begin, std::size_t count) const;
  /// Copies bytes [begin, begin + out.size()) to the host, or back.
  void read(std::size_t begin, std::span<std::byte> out) const;
  void write(std::size_t begin, std::span<const std::byte> values) const;
  /// Bytes [begin, end) become zero.
  void clear(std::size_t begin, std::size_t end) const;

  /// Calls f(const T*, n) with `count` numbers from byte `begin` on, in pieces if they have to be copied.
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
  std::span<std::byte> memory_;
  Stream* stream_ = nullptr;
};

/// Runs `job()` as work of the stream, and returns when it is done.
template <class Job>
void on_stream(Stream& stream, const Job& job) {
  stream.submit({[](void* context, std::size_t) { (*static_cast<const Job*>(context))(); }, const_cast<Job*>(&job)});
  stream.synchronize();
}

}  // namespace fsdp
