// What is x86-64's own (see processor.hpp).
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <string_view>

namespace fsdp {

/// x86-64-v2 (SSE4.2), -v3 (AVX2, FMA), -v4 (AVX-512). The kernels for AMX (kernels/rows/amx.cpp) count as level 5.
enum class CpuLevel { v2 = 2, v3 = 3, v4 = 4 };
#if defined(__clang__)
#define FSDP_TARGET_V4 [[gnu::target("arch=x86-64-v4")]] [[clang::min_vector_width(512)]]  // for the library
#else
#define FSDP_TARGET_V4 [[gnu::target("arch=x86-64-v4,prefer-vector-width=512")]]  // for the library
#endif
#define FSDP_CPU_LEVELS(X)                 \
  X(v2, [[gnu::target("arch=x86-64-v2")]]) \
  X(v3, [[gnu::target("arch=x86-64-v3")]]) \
  X(v4, FSDP_TARGET_V4)

/// The kernels for tiles of bf16 numbers (kernels::has_tiles() says whether they can run): their level, the name of their
/// instructions, and whether attention is among them.
inline constexpr int tile_level = 5;
inline constexpr std::string_view tile_instructions = "AMX";
inline constexpr bool has_tile_attention = true;

/// While an object of this class exists, denormal results and operands count as 0 in this thread.
class FlushDenormals {
 public:
  __attribute__((always_inline)) FlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040u);
  }  // the bits FTZ and DAZ of the MXCSR register
  __attribute__((always_inline)) ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

/// Copies n floats to `to`, which is aligned to 64 bytes. The stores bypass the caches, so that the CPU does not read the
/// memory of `to` first.
__attribute__((always_inline)) inline void copy_past_caches(std::size_t n, float* to, const float* from) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (std::size_t j = 0; j < 16; j += 4) _mm_stream_ps(to + i + j, _mm_loadu_ps(from + i + j));
  for (; i < n; ++i) to[i] = from[i];
  _mm_sfence();
}

/// Tells the processor that this thread spins.
inline void relax_cpu() { _mm_pause(); }

}  // namespace fsdp
