// The canonical order of sums (communicator.hpp). All backends for host memory add with this function. GPUs use the kernel in
// kernels/rows/ranks.hpp; the test comm.nccl checks that both give the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace fsdp {

/// Overwrites out[i] with the sum over r of inputs[r][i], or adds that sum to out[i] (`into`), for 0 <= i < count. Adjacent
/// inputs are added in pairs, then adjacent pairs, and so on; seven inputs give ((0+1)+(2+3)) + ((4+5)+6). The inputs are
/// arrays of In. With In = T (float, double or std::uint64_t), `out` may be one of the inputs. With T = float and In = bf16 or
/// f16, `out` may be the memory of a packed input (packed.hpp).
template <class T, class In = T>
void tree_sum(std::span<const void* const> inputs, std::size_t count, T* out, Into into);

}  // namespace fsdp
