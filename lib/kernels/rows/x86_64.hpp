// The parts of row bodies that are written for x86-64; aarch64.hpp has the same functions.
#pragma once

#if defined(__SSSE3__)  // in files that are compiled for a CpuLevel
#include <tmmintrin.h>

#include <cstdint>

#include "kernels/math.hpp"

#define FSDP_EXPANDS_CODES

namespace fsdp::kernels {

/// Expands 64 codes of 4 bits to the table's numbers, whose lower and upper bytes are in two registers.
FSDP_INLINE void expand_codes(std::uint16_t* to, const std::uint8_t* pairs, const std::uint16_t* table) {
  const auto at = [](const auto* p) { return reinterpret_cast<const __m128i*>(p); };
  const __m128i first = _mm_loadu_si128(at(table)), second = _mm_loadu_si128(at(table + 8)), byte = _mm_set1_epi16(0xff),
                nibble = _mm_set1_epi8(15), lower = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte)),
                upper = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
  for (int half = 0; half < 2; ++half) {
    const __m128i both = _mm_loadu_si128(at(pairs + 16 * half)), even = _mm_and_si128(_mm_srli_epi16(both, 4), nibble),
                  odd = _mm_and_si128(both, nibble);
    const __m128i codes[] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
    for (int quarter = 0; quarter < 2; ++quarter) {
      const __m128i low = _mm_shuffle_epi8(lower, codes[quarter]), high = _mm_shuffle_epi8(upper, codes[quarter]);
      auto* const out = reinterpret_cast<__m128i*>(to + 32 * half + 16 * quarter);
      _mm_storeu_si128(out, _mm_unpacklo_epi8(low, high));
      _mm_storeu_si128(out + 1, _mm_unpackhi_epi8(low, high));
    }
  }
}

}  // namespace fsdp::kernels
#endif
