// A rank's contribution to a sum, as it is sent: unchanged (In = T), or rounded to a 16-bit type and packed. A share is packed
// into the upper half of its own memory. That takes no other memory, and the fp32 sum can be written over the share from the
// front while the share is still being read.
#pragma once

#include <cstddef>

#include "base/element.hpp"

namespace fsdp {

/// Packs `data`, which is cut into shares for `ranks` ranks.
template <class In, class T>
void pack_shares(T* data, std::size_t total, std::size_t ranks);

/// Returns where the packed form of a share begins. The share has `numel` elements and begins at `share`.
template <class In, class T>
const In* packed(const T* share, std::size_t numel) {
  return reinterpret_cast<const In*>(reinterpret_cast<const std::byte*>(share) + numel * (sizeof(T) - sizeof(In)));
}

}  // namespace fsdp
