// Body of the initial weights: Box and Muller (1958) on Philox words. Plain products and sums only: the same bits on every
// instruction set, so that a model does not depend on the machine that made it.
#pragma once

#include <cstdint>

#include "base/philox.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// "Row" b = counters first_counter + [b * block, ...); counter c makes elements 4c .. 4c + 3 of the tensor.
struct NormalFill {
  static constexpr std::size_t block = 256;
  float* x;
  std::size_t n, global_begin;
  std::uint32_t seed, tensor;
  float mean, stddev;

  FSDP_INLINE static void pair(std::uint32_t radius_word, std::uint32_t angle_word, float& first, float& second) {
    // Uniform in (0, 1]: the word's conversion rounds, 0 becomes 2^-33.
    const float uniform = (static_cast<float>(static_cast<std::int32_t>(radius_word >> 1)) + 0.25f) * 0x1p-31f;
    const float radius = __builtin_sqrtf(-2.0f * log(uniform));
    const SinCos angle = sincos_turn(angle_word);
    first = radius * angle.cos;
    second = radius * angle.sin;
  }

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t global_end = global_begin + n;
    const std::size_t begin = global_begin / 4 + b * block, end = (global_end + 3) / 4;
    const NormalFill k = *this;
    lanes.each(end - begin < block ? end - begin : block, [=](std::size_t i) FSDP_LANE {
      const std::uint64_t counter = begin + i;
      const std::array<std::uint32_t, 4> words =
          philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}, {k.seed, k.tensor});
      float z[4];
      pair(words[0], words[1], z[0], z[1]);
      pair(words[2], words[3], z[2], z[3]);
      for (std::size_t j = 0; j < 4; ++j) {
        const std::size_t at = 4 * counter + j;
        if (at >= k.global_begin && at < global_end) k.x[at - k.global_begin] = k.mean + k.stddev * z[j];
      }
    });
  }
};

}  // namespace fsdp::kernels
