#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "device/cpu/processor.hpp"

namespace fsdp {

CpuLevel best_cpu_level() { return (::getauxval(AT_HWCAP) & HWCAP_SVE) != 0 ? CpuLevel::sve : CpuLevel::neon; }

std::string vector_instructions() { return best_cpu_level() == CpuLevel::sve ? "SVE" : "NEON"; }

}  // namespace fsdp
