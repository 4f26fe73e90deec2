// The canonical order of sums, in one place: all backends add with this function and with no other. GPUs cannot; the kernel
// that they have (kernels/rows/ranks.hpp) is held to the same bits by the test comm.nccl.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace fsdp {

/// out[i] (=, +=) the sum over r of inputs[r][i], 0 <= i < count. Adjacent inputs pair at stride 1, 2, 4, ...: seven give
/// ((0+1)+(2+3)) + ((4+5)+6). `out` may be one of the inputs, which are arrays of In. For T = In = float, double and
/// std::uint64_t, and for sums in float of bf16 and f16; then `out` may lie on an input as packed.hpp has it.
template <class T, class In = T>
void tree_sum(std::span<const void* const> inputs, std::size_t count, T* out, Into into);

}  // namespace fsdp
