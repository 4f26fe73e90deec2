// The layout of scratch memory.
#pragma once

#include <cstddef>

#include "kernels/math.hpp"

namespace fsdp {

/// Computes offsets of consecutive pieces in floats. Each piece begins at a cache line. The same calls compute the size of a
/// buffer and the places in it.
class Offsets {
 public:
  /// `size`: of the numbers of take_values(), in bytes.
  FSDP_INLINE explicit Offsets(std::size_t size, std::size_t begin = 0) : size_(size), end_(begin) {}
  FSDP_INLINE std::size_t take(std::size_t floats) {
    const std::size_t begin = end_;
    end_ += (floats + 15) / 16 * 16;
    return begin;
  }
  FSDP_INLINE std::size_t take_values(std::size_t numel) { return take((numel * size_ + sizeof(float) - 1) / sizeof(float)); }
  FSDP_INLINE std::size_t end() const { return end_; }

 private:
  std::size_t size_, end_;
};

}  // namespace fsdp
