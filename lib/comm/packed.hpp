// The form in which a rank's contribution to a sum is sent: unchanged (In = T), or rounded from fp32 to a 16-bit type (In) and
// "packed", that is, stored in the upper half of the share's own memory. Packing needs no other memory, and the fp32 sum can be
// written over the share from its start while the packed numbers are still being read.
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
