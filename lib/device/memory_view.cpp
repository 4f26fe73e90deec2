#include "device/memory_view.hpp"

#include <cstring>

#include "base/error.hpp"

namespace fsdp {

MemoryView MemoryView::part(std::size_t begin, std::size_t count) const {
  expect(begin + count <= bytes(), "bytes of the view");
  MemoryView part = *this;
  if (address_) part.address_ += begin;
  part.begin_ += begin, part.bytes_ = count;
  return part;
}

void MemoryView::read(std::size_t begin, std::span<std::byte> out) const {
  expect(begin + out.size() <= bytes(), "bytes of the view");
  if (out.empty()) return;
  if (const std::byte* const bytes = host()) return static_cast<void>(std::memcpy(out.data(), bytes + begin, out.size()));
  on_stream(*stream_, [&] {
    if (address_) return stream_->copy(out.data(), address_ + begin, out.size());
    storage_->read(*stream_, begin_ + begin, out.data(), out.size());
  });
}

void MemoryView::write(std::size_t begin, std::span<const std::byte> values) const {
  expect(begin + values.size() <= bytes(), "bytes of the view");
  if (values.empty()) return;
  if (std::byte* const bytes = host()) return static_cast<void>(std::memcpy(bytes + begin, values.data(), values.size()));
  on_stream(*stream_, [&] {
    if (address_) return stream_->copy(address_ + begin, values.data(), values.size());
    storage_->write(*stream_, begin_ + begin, values.data(), values.size());
  });
}

void MemoryView::clear(std::size_t begin, std::size_t end) const {
  expect(begin <= end && end <= bytes(), "bytes of the view");
  if (begin == end) return;
  if (std::byte* const bytes = host()) return static_cast<void>(std::memset(bytes + begin, 0, end - begin));
  const std::vector<std::byte> zeros(std::min(end - begin, most_at_once));
  for (std::size_t at = begin; at < end; at += zeros.size())
    write(at, std::span(zeros).first(std::min(zeros.size(), end - at)));
}

}  // namespace fsdp
