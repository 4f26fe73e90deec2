// The parts of row bodies that are written for one processor. Where the compiler has the instructions:
//   FSDP_EXPANDS_CODES and expand_codes(), which expands 4-bit codes to 16-bit numbers.
#pragma once

#if defined(__x86_64__)
#include "kernels/rows/x86_64.hpp"
#elif defined(__aarch64__)
#include "kernels/rows/aarch64.hpp"
#endif
