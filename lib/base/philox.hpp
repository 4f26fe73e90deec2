// Philox4x32-10, a counter-based random number generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011, section 3.3. The same (key, counter) gives the same four words anywhere. So initial weights, dropout masks and the
// order of samples depend only on global indices, and checkpoints need no state of a generator.
#pragma once

#include <array>
#include <cstdint>

#include "base/unroll.hpp"

#if defined(__CUDACC__)
#define FSDP_HOST_DEVICE __host__ __device__
#else
#define FSDP_HOST_DEVICE
#endif

namespace fsdp {

/// The purpose of a random number. It is part of every key or counter, so that no two purposes get the same numbers.
enum class RandomSite : std::uint32_t {
  initial_weights = 1,
  dropout = 2,
  sample_order = 3,
  generation = 4,
  optimizer_state = 5,
  master_weights = 6,
  gradient_sums = 7,
  embedding_noise = 8
};

/// Four independent uniform 32-bit words for `counter` (any 128 bits) under `key` (any 64 bits).
[[gnu::always_inline]] FSDP_HOST_DEVICE constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                                                      std::array<std::uint32_t, 2> key) {
  FSDP_UNROLL
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace fsdp
