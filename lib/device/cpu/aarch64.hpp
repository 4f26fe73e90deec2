// What is aarch64's own (see processor.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp {

/// NEON, which every aarch64 processor has, and SVE, for vectors of any length. The kernels for BFMMLA
/// (kernels/rows/bfmmla.cpp) count as level 10.
enum class CpuLevel { neon = 8, sve = 9 };
#define FSDP_CPU_LEVELS(X) X(neon, ) X(sve, [[gnu::target("+sve")]])

/// The kernels for tiles of bf16 numbers, as on x86-64.
inline constexpr int tile_level = 10;
inline constexpr std::string_view tile_instructions = "BFMMLA";
inline constexpr bool has_tile_attention = false;

/// While an object of this class exists, denormal results and operands count as 0 in this thread.
class FlushDenormals {
 public:
  __attribute__((always_inline)) FlushDenormals() {
    constexpr std::uint64_t flush_to_zero = 1u << 24;  // the bit FZ of the register FPCR
    asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
    set(saved_ | flush_to_zero);
  }
  __attribute__((always_inline)) ~FlushDenormals() { set(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  __attribute__((always_inline)) static void set(std::uint64_t fpcr) { asm volatile("msr fpcr, %0" : : "r"(fpcr) : "memory"); }
  std::uint64_t saved_;
};

/// Copies n floats to `to`, which is aligned to 64 bytes. (Stores that bypass the caches are only a hint on this processor.)
__attribute__((always_inline)) inline void copy_past_caches(std::size_t n, float* to, const float* from) {
  __builtin_memcpy(to, from, n * sizeof(float));
}

/// Tells the processor that this thread spins.
inline void relax_cpu() { asm volatile("isb" : : : "memory"); }

}  // namespace fsdp
