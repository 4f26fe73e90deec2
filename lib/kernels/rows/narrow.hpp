// bf16 and fp16 as 16 bits in memory, to and from fp32: integers and selects, so that loops over them become vector code on
// every instruction set, and all of them give the same bits.
#pragma once

#include <cstdint>

#include "kernels/math.hpp"

namespace fsdp::kernels {

/// bf16 is the upper half of an fp32 number.
FSDP_INLINE float widen_bf16(std::uint16_t value) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16); }

/// To the nearest, ties to even; a NaN stays one.
FSDP_INLINE std::uint16_t round_to_bf16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/// Up or down at random, so that the expected value is `value`: `noise` is uniform in [0, 2^16). What is not finite stays so,
/// and what is finite, too.
FSDP_INLINE std::uint16_t round_to_bf16(float value, std::uint32_t noise) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const bool down = (bits & 0x7fff0000u) >= 0x7f7f0000u;  // the largest finite number and what lies above
  const std::uint32_t nan = (bits & 0x7fffffffu) > 0x7f800000u ? 0x40u : 0u;
  return static_cast<std::uint16_t>(((bits + (down ? 0u : noise)) >> 16) | nan);
}

/// To the nearest fp16, ties to even; beyond its range infinity, a NaN stays one.
FSDP_INLINE std::uint16_t round_to_f16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value), sign = bits >> 16 & 0x8000u,
                      magnitude = bits & 0x7fffffffu;
  // Below 2^-14 a unit in the last place is 2^-24, which is that of a float in [0.5, 1): the addition rounds.
  const std::uint32_t small =
      __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - __builtin_bit_cast(std::uint32_t, 0.5f);
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const std::uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t finite = magnitude < 0x38800000u ? small : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x477ff000u ? large : finite));  // from 65520 on
}

}  // namespace fsdp::kernels
