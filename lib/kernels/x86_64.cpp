// Checks if this x86-64 processor has the instructions for tiles of bf16 numbers: AMX.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/gemm_library.hpp"
#include "kernels/launch.hpp"

namespace fsdp::kernels {

namespace {

/// Checks for the instructions of rows/amx.cpp that x86-64-v4 does not have.
bool has_amx() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, avx512_bf16 = 1u << 5;
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & amx_bf16) && (edx & amx_tile) &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & avx512_bf16);
}

}  // namespace

bool has_tiles() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux
  static const bool has = cpu_level() == CpuLevel::v4 && has_amx() && library_allows_amx() &&
                          syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return has;
}

}  // namespace fsdp::kernels
