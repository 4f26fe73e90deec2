// The canonical order of sums: all backends on CPUs add with this function. GPUs have their own kernel
// (kernels/rows/ranks.hpp); the test comm.nccl checks that it gives the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace fsdp {

/// out[i] (=, +=) the sum over r of inputs[r][i], 0 <= i < count. Adjacent inputs pair at stride 1, 2, 4, ...: seven give
/// ((0+1)+(2+3)) + ((4+5)+6). The inputs are arrays of In; `out` may be one of them. Exists for T = In = float, double and
/// std::uint64_t, and for T = float with In = bf16 and f16; then `out` may overlap an input that is packed as in packed.hpp.
template <class T, class In = T>
void tree_sum(std::span<const void* const> inputs, std::size_t count, T* out, Into into);

}  // namespace fsdp
