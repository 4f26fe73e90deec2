// Makes dropout masks, and launches dropout.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.hpp"
#include "kernels/kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

DropoutMask dropout_mask(float rate, std::uint32_t seed, std::uint32_t site, std::uint64_t update, std::uint64_t first_sequence,
                         std::size_t T) {
  expect(rate >= 0 && rate < 1, "a dropout rate must be at least 0 and below 1");
  expect(first_sequence <= std::numeric_limits<std::uint32_t>::max(), "an update must have fewer than 2^32 sequences");
  const auto words = philox({site, static_cast<std::uint32_t>(update), static_cast<std::uint32_t>(update >> 32),
                             static_cast<std::uint32_t>(RandomSite::dropout)},
                            {seed, 0});
  const double dropped = std::min(std::round(double{rate} * 0x1p16), 0x1p16 - 1);
  return {{words[0], words[1]},
          static_cast<std::uint32_t>(first_sequence),
          static_cast<std::int32_t>(dropped),
          static_cast<float>(1 / (1 - dropped * 0x1p-16)),
          T};
}

template <class E>
void dropout(Stream& stream, E* y, const E* x, std::size_t R, std::size_t C, const DropoutMask& mask) {
  launch(stream, DropoutBody<E>{y, x, C, mask}, R);
}

#define FSDP_INSTANTIATE(E) template void dropout(Stream&, E*, const E*, std::size_t, std::size_t, const DropoutMask&);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
