#include "kernels/launch.hpp"
#include "kernels/gemm_library.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace fsdp::kernels {

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

/// Checks for the instructions of rows/amx.cpp, which are more than those of x86-64-v4.
bool has_amx() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, avx512_bf16 = 1u << 5;
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & amx_bf16) && (edx & amx_tile) &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & avx512_bf16);
}

CpuLevel choose_level() {
  const CpuLevel best = has_v4() ? CpuLevel::v4 : has_v3() ? CpuLevel::v3 : CpuLevel::v2;
  if (!has_v2())
    throw UserError("this processor is too old (the kernels need x86-64-v2, which includes SSE4.2); use another machine");
  const char* asked = std::getenv("FSDP_CPU_LEVEL");
  if (!asked || !*asked) return best;
  const std::string_view name = asked;
  const CpuLevel level = name == "v4" ? CpuLevel::v4 : name == "v3" ? CpuLevel::v3 : CpuLevel::v2;
  if (level == CpuLevel::v2 && name != "v2")
    throw UserError("FSDP_CPU_LEVEL=" + std::string(name) +
                    " is unknown (the levels are v2, v3 and v4); correct or unset the variable");
  if (level > best)
    throw UserError("FSDP_CPU_LEVEL=" + std::string(name) +
                    " is not possible (this processor does not have the instructions of this level); unset the variable");
  return level;
}

}  // namespace

CpuLevel cpu_level() {
  static const CpuLevel level = choose_level();  // computed once for all ranks that are threads of this process
  return level;
}

bool has_tiles() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux
  static const bool has = cpu_level() == CpuLevel::v4 && has_amx() && library_allows_amx() &&
                          syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return has;
}

}  // namespace fsdp::kernels
