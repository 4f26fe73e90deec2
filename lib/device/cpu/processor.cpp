#include "device/cpu/processor.hpp"

#include <cstdlib>

#include "base/user_error.hpp"

namespace fsdp {

namespace {

struct NamedLevel {
  std::string_view name;
  CpuLevel level;
};
#define FSDP_NAMED(LEVEL, ...) {#LEVEL, CpuLevel::LEVEL},
constexpr NamedLevel levels[] = {FSDP_CPU_LEVELS(FSDP_NAMED)};
#undef FSDP_NAMED

std::string names_of_levels() {
  std::string names(levels[0].name);
  for (std::size_t i = 1; i < std::size(levels); ++i)
    names += (i + 1 < std::size(levels) ? ", " : " and ") + std::string(levels[i].name);
  return names;
}

CpuLevel choose_level() {
  const CpuLevel best = best_cpu_level();
  const char* asked = std::getenv("FSDP_CPU_LEVEL");
  if (!asked || !*asked) return best;
  for (const NamedLevel& known : levels)
    if (known.name == asked) {
      if (known.level <= best) return known.level;
      throw UserError("FSDP_CPU_LEVEL=" + std::string(asked) +
                      " is not possible (this processor does not have the instructions of this level); unset the variable");
    }
  throw UserError("FSDP_CPU_LEVEL=" + std::string(asked) + " is unknown (the levels are " + names_of_levels() +
                  "); correct or unset the variable");
}

}  // namespace

CpuLevel cpu_level() {
  static const CpuLevel level = choose_level();  // computed once for all ranks that are threads of this process
  return level;
}

}  // namespace fsdp
