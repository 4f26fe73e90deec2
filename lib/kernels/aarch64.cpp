#include "kernels/launch.hpp"

namespace fsdp::kernels {

bool has_tiles() { return false; }

}  // namespace fsdp::kernels
