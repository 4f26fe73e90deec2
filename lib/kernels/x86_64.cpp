#include <sys/syscall.h>
#include <unistd.h>
#include <dnnl.hpp>

#include "kernels/launch.hpp"

namespace fsdp::kernels {

bool has_tiles() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux
  static const bool has = cpu_level() == CpuLevel::v4 && dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx &&
                          syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return has;
}

}  // namespace fsdp::kernels
