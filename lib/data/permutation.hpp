// The order of shuffled sequences: a bijection of 0 .. n-1 that is computed for one position at a time, so that no list is
// held, any position is reached at once, and every rank knows what every other one reads.
#pragma once

#include <cstdint>

namespace fsdp {

/// Where position `index` of epoch `epoch` comes from; for fixed n, seed and epoch a permutation of 0 .. n-1. A Feistel network
/// over Philox on the smallest even number of bits that holds n, walked until the result is below n (Black and Rogaway,
/// "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4). Requires index < n.
std::uint64_t permuted(std::uint64_t index, std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace fsdp
