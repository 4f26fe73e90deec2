// What differs between the processors that the library is written for: x86_64.hpp and aarch64.hpp define the same names, and
// only files that are named after a processor, or that tools/check-processors lists, contain a processor's own code.
//
// Each file defines CpuLevel, whose values number the sets of instructions for which the row kernels are compiled (no number
// belongs to two processors); FSDP_CPU_LEVELS(X), which expands X(LEVEL, ATTRIBUTES) for each level, the lowest first, where
// ATTRIBUTES compile a function for the level; FlushDenormals; and a few functions.
#pragma once

#include <string>
#include <string_view>

#if defined(__x86_64__)
#include "device/cpu/x86_64.hpp"
#elif defined(__aarch64__)
#include "device/cpu/aarch64.hpp"
#else
#error "fsdp has kernels for x86-64 and aarch64"
#endif

namespace fsdp {

/// The best level of this processor, or a lower one if the environment variable FSDP_CPU_LEVEL names it. Throws UserError if
/// the value is unknown or above the processor's level.
CpuLevel cpu_level();

/// Calls f.operator()<level>() with the level of cpu_level().
template <class F>
void at_cpu_level(F&& f) {
  switch (cpu_level()) {
#define FSDP_CALL(LEVEL, ...) \
  case CpuLevel::LEVEL:       \
    return f.template operator()<static_cast<int>(CpuLevel::LEVEL)>();
    FSDP_CPU_LEVELS(FSDP_CALL)
#undef FSDP_CALL
  }
}

/// The best level of this processor. Throws UserError if the processor has none.
CpuLevel best_cpu_level();

/// The name of the processor's vector instructions, such as "AVX-512".
std::string vector_instructions();

}  // namespace fsdp
