// Rounding to 16 bits. bf16 optimizer states are rounded stochastically: with rounding to nearest, a moving average would not
// change if each update's step were too small. Loops have no branches on CPUs, so that they become vector code, and every
// instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "base/element.hpp"
#include "kernels/rows/lanes.hpp"

namespace fsdp::kernels {

/// Rounds up or down such that the expected value is `value`; `noise` is uniform in [0, 2^16). Infinities and NaNs are
/// unchanged, and finite numbers stay finite.
FSDP_INLINE std::uint16_t round_to_bf16(float value, std::uint32_t noise) {
  const std::uint32_t bits = element_parts::bits_of(value);
  const bool down = (bits & 0x7fff0000u) >= 0x7f7f0000u;  // true for the largest finite number and all numbers above it
  const std::uint32_t nan = (bits & 0x7fffffffu) > 0x7f800000u ? 0x40u : 0u;
  return static_cast<std::uint16_t>(((bits + (down ? 0u : noise)) >> 16) | nan);
}

/// As round_to_bf16(), for results of arithmetic. Their NaNs are quiet (the first mantissa bit is set), so their upper 16 bits
/// are a NaN, too. A comparison of floats instead of integers halves a GPU's instructions.
FSDP_INLINE std::uint16_t round_result_to_bf16(float value, std::uint32_t noise) {
  std::uint32_t bits = element_parts::bits_of(value);
  if (__builtin_fabsf(value) < 0x1.fep127f) bits += noise;  // smaller than the largest bf16 number
  return static_cast<std::uint16_t>(bits >> 16);
}

/// to[offset + i] = from[i], rounded to the nearest number of the type.
template <class Lanes>
FSDP_INLINE void write_halves(Lanes lanes, Halves to, std::size_t offset, const float* from, std::size_t count) {
  std::uint16_t* const out = to.data + offset;
  if (to.type == DType::bf16)
    lanes.each(
        count, [](std::uint16_t& o, float x) FSDP_LANE { o = element_parts::to_bf16(x); }, writes(out), from);
  else
    lanes.each(
        count, [](std::uint16_t& o, float x) FSDP_LANE { o = element_parts::to_f16(x); }, writes(out), from);
}

}  // namespace fsdp::kernels
