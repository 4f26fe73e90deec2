// The parts of row bodies that are written for aarch64; x86_64.hpp has the same functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/math.hpp"

#define FSDP_EXPANDS_CODES

namespace fsdp::kernels {

/// Expands 64 codes of 4 bits to the table's numbers, whose lower and upper bytes are in two registers.
FSDP_INLINE void expand_codes(std::uint16_t* to, const std::uint8_t* pairs, const std::uint16_t* table) {
  const uint8x16x2_t bytes = vld2q_u8(reinterpret_cast<const std::uint8_t*>(table));
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  for (int half = 0; half < 2; ++half) {
    const uint8x16_t both = vld1q_u8(pairs + 16 * half);
    const uint8x16x2_t codes = vzipq_u8(vshrq_n_u8(both, 4), vandq_u8(both, vdupq_n_u8(15)));
    for (int quarter = 0; quarter < 2; ++quarter, out += 32)
      vst2q_u8(out, {{vqtbl1q_u8(bytes.val[0], codes.val[quarter]), vqtbl1q_u8(bytes.val[1], codes.val[quarter])}});
  }
}

}  // namespace fsdp::kernels
