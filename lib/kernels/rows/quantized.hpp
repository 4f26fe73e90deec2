// Row bodies that expand quantized matrices: see kernels/quantized.hpp. "Row" b is a block of flat_block elements, as in
// pointwise.hpp.
#pragma once

#include <cstdint>

#include "base/element.hpp"
#include "kernels/rows/pointwise.hpp"
#if !defined(FSDP_GPU)
#include "kernels/rows/processor.hpp"
#endif

namespace fsdp::kernels {

/// Row r is a row of the matrix.
template <class E>
struct DequantizeInt8 {
  E* out;
  const std::int8_t* codes;
  const float* scales;
  std::size_t columns;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t r) const {
    const float scale = scales[r] * (1.0f / 127);
    lanes.each(
        columns, [=](E& to, float code) FSDP_LANE { to = E(code * scale); }, writes(out + r * columns), codes + r * columns);
  }
};

/// `block_scales` and `codes` begin at the first of n elements, which is the first of block `first_block` of the matrix.
template <class E>
struct DequantizeNf4 {
  static constexpr unsigned cuda_threads = 32;
  static constexpr std::size_t block = 64;
  E* out;
  const float *levels, *scale_levels, *mean_scale, *scales;
  const std::uint8_t *block_scales, *codes;
  std::size_t first_block, n;

  template <class Lanes>
  FSDP_INLINE void operator()(Lanes lanes, std::size_t b) const {
    const std::size_t begin = b * flat_block, end = n - begin < flat_block ? n : begin + flat_block;
    for (std::size_t i = begin; i < end; i += block) {
      const float* const level = levels;
      const float scale = scale_levels[block_scales[i / block]] * scales[(first_block + i / block) / 256] + *mean_scale;
      const std::uint8_t* const pairs = codes + i / 2;
      E* const to = out + i;
      const std::size_t count = end - i < block ? end - i : block;
#if defined(FSDP_EXPANDS_CODES)
      if (sizeof(E) == 2 && count == block) {
        E table[16];
        E* const entry = table;
        lanes.each(16, [=](std::size_t code) FSDP_LANE { entry[code] = E(scale * level[code]); });
        expand_codes(reinterpret_cast<std::uint16_t*>(to), pairs, reinterpret_cast<const std::uint16_t*>(table));
        continue;
      }
#endif
      lanes.each(count / 2, [=](std::size_t j) FSDP_LANE {
        to[2 * j] = E(scale * level[pairs[j] >> 4]);
        to[2 * j + 1] = E(scale * level[pairs[j] & 15]);
      });
      if (count % 2 == 1) lanes.once([=]() FSDP_LANE { to[count - 1] = E(scale * level[pairs[count / 2] >> 4]); });
    }
  }
};

}  // namespace fsdp::kernels
