// Arena: one memory block in which the memory plan has given each buffer its offset. The arena counts the bytes in use.
#include "base/error.hpp"
#include "device/device.hpp"

namespace fsdp {

std::byte* Arena::at(std::size_t offset, std::size_t bytes) const {
  expect(offset + bytes <= buffer_.bytes(), "a planned buffer lies outside the arena");
  return buffer_.data() + offset;
}

void Arena::acquire(std::size_t bytes) {
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
}

void Arena::give_back(std::size_t bytes) {
  expect(bytes <= in_use_, "more memory was given back to the arena than was taken");
  in_use_ -= bytes;
}

}  // namespace fsdp
