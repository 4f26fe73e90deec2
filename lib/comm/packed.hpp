// What a rank adds to a sum, on its way to it: as it lies (In = T), or rounded to a 16-bit type and packed. A share is packed
// into the upper half of its own memory, so that nothing else is needed, and so that its sum can be written over it in fp32,
// from the front, while it is still being read.
#pragma once

#include <cstddef>

#include "base/element.hpp"

namespace fsdp {

/// Packs `data`, cut into shares for so many ranks.
template <class In, class T>
void pack_shares(T* data, std::size_t total, std::size_t ranks);

/// Where a share of `numel` elements that begins at `share` lies when it is packed.
template <class In, class T>
const In* packed(const T* share, std::size_t numel) {
  return reinterpret_cast<const In*>(reinterpret_cast<const std::byte*>(share) + numel * (sizeof(T) - sizeof(In)));
}

}  // namespace fsdp
