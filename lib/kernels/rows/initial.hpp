// Row bodies that fill initial weights with numbers computed from Philox words. Normal numbers are computed by the method of
// Box and Muller (1958). The computations use only plain products and sums, which give the same bits on every instruction set,
// so that a model does not depend on the machine that initialised it.
#pragma once

#include <cstdint>

#include "base/philox.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Computes independent standard normal numbers from Philox words.
struct NormalNumbers {
  FSDP_INLINE static void pair(std::uint32_t radius_word, std::uint32_t angle_word, float& first, float& second) {
    // Uniform in (0, 1]: the conversion of the word rounds, and the word 0 becomes 2^-33.
    const float uniform = (static_cast<float>(static_cast<std::int32_t>(radius_word >> 1)) + 0.25f) * 0x1p-31f;
    const float radius = square_root(-2.0f * log(uniform));
    const SinCos angle = sincos_turn(angle_word);
    first = radius * angle.cos;
    second = radius * angle.sin;
  }
  FSDP_INLINE static void from(const std::array<std::uint32_t, 4>& words, float (&z)[4]) {
    pair(words[0], words[1], z[0], z[1]);
    pair(words[2], words[3], z[2], z[3]);
  }
};

/// Computes uniform numbers in [-1, 1]: multiples of 2^-31, rounded to float.
struct UniformNumbers {
  FSDP_INLINE static void from(const std::array<std::uint32_t, 4>& words, float (&z)[4]) {
    FSDP_UNROLL
    for (int j = 0; j < 4; ++j)
      z[j] = static_cast<float>(static_cast<std::int32_t>(words[static_cast<std::size_t>(j)])) * 0x1p-31f;
  }
};

/// x = mean + spread z. "Row" b processes `block` counters, from global_begin / 4 + b * block on. Counter c defines elements 4c
/// to 4c + 3 of the tensor.
template <class Numbers>
struct RandomFill {
  static constexpr std::size_t block = 256;
  float* x;
  std::size_t n, global_begin;
  std::uint32_t seed, tensor;
  float mean, spread;

  /// The four numbers of a counter.
  FSDP_INLINE void quadruple(std::uint64_t counter, float (&z)[4]) const {
    Numbers::from(
        philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}, {seed, tensor}), z);
  }

  /// Writes those elements of a counter that are in [global_begin, global_begin + n).
  FSDP_INLINE void part(std::uint64_t counter) const {
    float z[4];
    quadruple(counter, z);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t at = 4 * counter + j;
      if (at >= global_begin && at < global_begin + n) x[at - global_begin] = mean + spread * z[j];
    }
  }

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t global_end = global_begin + n, last = (global_end + 3) / 4;
    const std::size_t begin = global_begin / 4 + b * block, end = last - begin < block ? last : begin + block;
    const RandomFill k = *this;
    // Counters of which all four elements are in the range. Only the first and the last counter may have fewer.
    const std::size_t whole_begin = 4 * begin < global_begin ? begin + 1 : begin;
    const std::size_t whole_end = 4 * end > global_end ? end - 1 : end;
    if (whole_begin < whole_end) {
      float* out = x + (4 * whole_begin - global_begin);
      lanes.each(whole_end - whole_begin, [=](std::size_t i) FSDP_LANE {
        float z[4];
        k.quadruple(whole_begin + i, z);
        out[4 * i] = k.mean + k.spread * z[0];
        out[4 * i + 1] = k.mean + k.spread * z[1];
        out[4 * i + 2] = k.mean + k.spread * z[2];
        out[4 * i + 3] = k.mean + k.spread * z[3];
      });
    }
    lanes.once([=]() FSDP_LANE {
      if (begin < whole_begin) k.part(begin);
      if (whole_end < end && end - 1 >= whole_begin) k.part(end - 1);
    });
  }
};

using NormalFill = RandomFill<NormalNumbers>;
using UniformFill = RandomFill<UniformNumbers>;

}  // namespace fsdp::kernels
