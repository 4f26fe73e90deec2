#include "device/memory_view.hpp"

#include <cstring>

#include "base/error.hpp"

namespace fsdp {

MemoryView MemoryView::part(std::size_t begin, std::size_t count) const {
  expect(begin + count <= bytes(), "bytes of the view");
  MemoryView part = *this;
  part.memory_ = memory_.subspan(begin, count);
  return part;
}

void MemoryView::read(std::size_t begin, std::span<std::byte> out) const {
  expect(begin + out.size() <= bytes(), "bytes of the view");
  if (out.empty()) return;
  const auto copy = [&] { std::memcpy(out.data(), memory_.data() + begin, out.size()); };
  return host() ? copy() : on_stream(*stream_, copy);
}

void MemoryView::write(std::size_t begin, std::span<const std::byte> values) const {
  expect(begin + values.size() <= bytes(), "bytes of the view");
  if (values.empty()) return;
  const auto copy = [&] { std::memcpy(memory_.data() + begin, values.data(), values.size()); };
  return host() ? copy() : on_stream(*stream_, copy);
}

void MemoryView::clear(std::size_t begin, std::size_t end) const {
  expect(begin <= end && end <= bytes(), "bytes of the view");
  if (begin == end) return;
  const auto zero = [&] { std::memset(memory_.data() + begin, 0, end - begin); };
  return host() ? zero() : on_stream(*stream_, zero);
}

}  // namespace fsdp
