// Sequences of documents for tests of attention.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace fsdp::test {

/// Returns positions[B,T] (kernels::AttentionShape) for documents of 1 to 70 tokens: some have one token, some are longer than
/// the tiles of any kernel. The first sequence begins with a document that is longer than one step of every kernel.
inline std::vector<std::int32_t> document_positions(std::size_t B, std::size_t T) {
  std::mt19937 generator(11);
  std::vector<std::int32_t> positions;
  std::size_t left = 130;
  for (std::size_t b = 0; b < B; ++b) {
    for (std::size_t t = 0, at = 0; t < T; ++t, --left) {
      if (t > 0 && left == 0) at = 0;
      if (left == 0) left = generator() % 3 == 0 ? 1 + generator() % 3 : 1 + generator() % 70;
      positions.push_back(static_cast<std::int32_t>(at++));
    }
    left = 1 + generator() % 40;
  }
  return positions;
}

}  // namespace fsdp::test
