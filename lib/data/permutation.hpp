// The order of shuffled sequences: a permutation of 0 .. n-1 that is computed for one position at a time. So no list
// is in memory, and every rank can compute the sequence at any position.
#pragma once

#include <cstdint>

namespace fsdp {

/// Returns the sequence at position `index` of epoch `epoch`; for fixed n, seed and epoch this is a permutation of 0 .. n-1.
/// The method is a Feistel network (with Philox as its round function) on the smallest even number of bits that can hold n - 1.
/// It is applied again until the result is below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
/// section 4). Requires index < n.
std::uint64_t permuted(std::uint64_t index, std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace fsdp
