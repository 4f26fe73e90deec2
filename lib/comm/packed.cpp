#include "comm/packed.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tensor/shape.hpp"

namespace fsdp {

namespace {

// Rounds the last elements first, so that the output, which is in the same memory, never overwrites elements that are still to
// be read.
template <class In>
void pack(float* share, std::size_t numel) {
  constexpr std::size_t block = 512;
  std::array<In, block> rounded;
  auto* const upper = reinterpret_cast<std::byte*>(share) + numel * (sizeof(float) - sizeof(In));
  for (std::size_t left = numel; left > 0;) {
    const std::size_t n = std::min(block, left);
    left -= n;
    for (std::size_t i = 0; i < n; ++i) rounded[i] = In(share[left + i]);
    std::memcpy(upper + left * sizeof(In), rounded.data(), n * sizeof(In));
  }
}

}  // namespace

template <class In, class T>
void pack_shares(T* data, std::size_t total, std::size_t ranks) {
  if constexpr (!std::is_same_v<In, T>)
    for (std::size_t r = 0; r < ranks; ++r) {
      const Range range = share(total, ranks, r);
      pack<In>(data + range.begin, range.size());
    }
}

template void pack_shares<float>(float*, std::size_t, std::size_t);
template void pack_shares<bf16>(float*, std::size_t, std::size_t);
template void pack_shares<f16>(float*, std::size_t, std::size_t);
template void pack_shares<double>(double*, std::size_t, std::size_t);
template void pack_shares<std::uint64_t>(std::uint64_t*, std::size_t, std::size_t);

}  // namespace fsdp
