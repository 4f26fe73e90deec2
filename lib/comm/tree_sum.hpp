// The canonical order of sums, in one place: both backends add with this function and with no other.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace fsdp {

/// out[i] (=, +=) the sum over r of inputs[r][i], 0 <= i < count. Adjacent inputs pair at stride 1, 2, 4, ...: seven give
/// ((0+1)+(2+3)) + ((4+5)+6). `out` may be one of the inputs, which are arrays of T. For float, double and std::uint64_t.
template <class T>
void tree_sum(std::span<const void* const> inputs, std::size_t count, T* out, Into into);

}  // namespace fsdp
