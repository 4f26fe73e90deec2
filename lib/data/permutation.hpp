// The order of shuffled sequences: a permutation of 0 .. n-1 that is computed for one position at a time. So there is no list
// in memory, and every rank can compute any position of the order.
#pragma once

#include <cstdint>

namespace fsdp {

/// Returns the sequence at position `index` of epoch `epoch`; for fixed n, seed and epoch this is a permutation of 0 .. n-1.
/// The method is a Feistel network with Philox on the smallest even number of bits that can hold n - 1, repeated until the
/// result is below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4). Requires index < n.
std::uint64_t permuted(std::uint64_t index, std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace fsdp
