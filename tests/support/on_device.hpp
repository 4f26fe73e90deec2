// A test's numbers in a device's memory.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "device/memory_view.hpp"

namespace fsdp::test {

/// Numbers that `stream` copies to the device and back.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, Stream& stream, std::vector<T> values)
      : values_(std::move(values)), buffer_(device.allocate(values_.size() * sizeof(T))), stream_(stream) {
    if (!values_.empty()) view().write(0, std::as_bytes(std::span(values_)));
  }
  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  const std::vector<T>& fetch() {
    if (!values_.empty()) view().read(0, std::as_writable_bytes(std::span(values_)));
    return values_;
  }

 private:
  MemoryView view() const { return MemoryView(std::span(buffer_.data(), buffer_.bytes()), stream_); }
  std::vector<T> values_;
  Buffer buffer_;
  Stream& stream_;
};

}  // namespace fsdp::test
