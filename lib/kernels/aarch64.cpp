// Checks if this aarch64 processor has the instructions for tiles of bf16 numbers: BFMMLA and others of FEAT_BF16.
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "kernels/launch.hpp"

namespace fsdp::kernels {

bool has_tiles() { return cpu_level() == best_cpu_level() && (::getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }

}  // namespace fsdp::kernels
