#include "data/permutation.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"
#include "base/philox.hpp"

namespace fsdp {

std::uint64_t permuted(std::uint64_t index, std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) {
  expect(index < n, "only positions of the data are permuted");
  const int half = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half, right = index & mask;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const auto words = philox({static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(epoch), round,
                                 static_cast<std::uint32_t>(RandomSite::sample_order)},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
      const std::uint64_t next = (left ^ words[0]) & mask;
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}

}  // namespace fsdp
