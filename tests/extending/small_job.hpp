// The small model and its tokens, on which several tests of extensions train.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/config.hpp"

namespace fsdp::test {

/// The number of sequences per rank and micro-batch, and the tokens of a sequence.
constexpr std::size_t B = 2, T = 8;

inline TransformerConfig small_model() {
  TransformerConfig config;
  config.vocab_size = 61, config.max_positions = T, config.width = 12, config.layers = 3, config.heads = config.kv_heads = 3;
  config.head_size = 4, config.ffn_width = 29;
  return config;
}

/// Writes the tokens of a rank's micro-batch, which are the same in each update.
inline void read_small_batch(int rank, std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(B * T); ++i) {
    inputs[i] = (i * i + 3 * static_cast<std::int32_t>(micro) + rank) % 61;
    targets[i] = (7 * i + static_cast<std::int32_t>(micro) + 5 * rank) % 61;
  }
}

}  // namespace fsdp::test
