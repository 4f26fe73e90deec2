#include <cpuid.h>

#include "base/user_error.hpp"
#include "device/cpu/processor.hpp"

namespace fsdp {

namespace {

/// These three functions check for the instructions of the x86-64 levels (psABI 1.0, table 3.1), since compilers older than g++
/// 12 and clang 17 do not know the levels by name.
bool has_v2() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("popcnt");
}

bool has_v3() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2"))
    return false;
  constexpr unsigned movbe = 1u << 22, f16c = 1u << 29, lzcnt = 1u << 5;  // bits without names in __builtin_cpu_supports()
  unsigned eax, ebx, basic, extended, edx;
  return __get_cpuid(1, &eax, &ebx, &basic, &edx) && (basic & movbe) && (basic & f16c) &&
         __get_cpuid(0x80000001, &eax, &ebx, &extended, &edx) && (extended & lzcnt);
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

CpuLevel best_cpu_level() {
  if (!has_v2())
    throw UserError("this processor is too old (the kernels need x86-64-v2, which includes SSE4.2); use another machine");
  return has_v4() ? CpuLevel::v4 : has_v3() ? CpuLevel::v3 : CpuLevel::v2;
}

std::string vector_instructions() {
  if (__builtin_cpu_supports("avx512f")) return "AVX-512";
  if (__builtin_cpu_supports("avx2")) return "AVX2";
  return "SSE4.2 or less";
}

}  // namespace fsdp
