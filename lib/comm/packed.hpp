// The form in which a rank sends its numbers for a sum. T is the type of the numbers in memory, In the type that is sent. If
// In = T, the numbers are sent unchanged. Otherwise T is fp32 and In is a 16-bit type: the numbers of each share are rounded
// to In and "packed", that is, stored in the second half of the memory of the same share. Packing needs no other memory, and
// the fp32 sum can be written over the share from its start while the packed numbers are still being read.
#pragma once

#include <cstddef>

#include "base/element.hpp"

namespace fsdp {

/// Packs each share of `data`, which has `total` elements and one share per rank.
template <class In, class T>
void pack_shares(T* data, std::size_t total, std::size_t ranks);

/// Returns where the packed form of a share begins. The share has `numel` elements and begins at `share`.
template <class In, class T>
const In* packed(const T* share, std::size_t numel) {
  return reinterpret_cast<const In*>(reinterpret_cast<const std::byte*>(share) + numel * (sizeof(T) - sizeof(In)));
}

}  // namespace fsdp
