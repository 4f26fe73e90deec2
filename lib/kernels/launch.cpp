#include "kernels/launch.hpp"

#include <sys/syscall.h>
#include <unistd.h>
#include <dnnl.hpp>

#include <cstdlib>
#include <string_view>

namespace fsdp::kernels {

namespace {

CpuLevel choose_level() {
  const CpuLevel best = __builtin_cpu_supports("x86-64-v4")   ? CpuLevel::v4
                        : __builtin_cpu_supports("x86-64-v3") ? CpuLevel::v3
                                                              : CpuLevel::v2;
  if (!__builtin_cpu_supports("x86-64-v2"))
    throw UserError("this processor is too old (the kernels need x86-64-v2, that is SSE4.2); use another machine");
  const char* asked = std::getenv("FSDP_CPU_LEVEL");
  if (!asked || !*asked) return best;
  const std::string_view name = asked;
  const CpuLevel level = name == "v4" ? CpuLevel::v4 : name == "v3" ? CpuLevel::v3 : CpuLevel::v2;
  if (level == CpuLevel::v2 && name != "v2")
    throw UserError("FSDP_CPU_LEVEL=" + std::string(name) + " is unknown (there are v2, v3 and v4); correct or unset it");
  if (level > best)
    throw UserError("FSDP_CPU_LEVEL=" + std::string(name) +
                    " is not possible (this processor has no such instructions); unset it");
  return level;
}

}  // namespace

CpuLevel cpu_level() {
  static const CpuLevel level = choose_level();  // a property of the machine, the same for every rank of a process
  return level;
}

bool has_tiles() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux
  static const bool has = cpu_level() == CpuLevel::v4 && dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx &&
                          syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return has;
}

}  // namespace fsdp::kernels
