// A model of three blocks that trains in milliseconds, and micro-batches of 2 sequences of 8 tokens for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/config.hpp"

namespace fsdp::test {

inline TransformerConfig small_model() {
  TransformerConfig config;
  config.vocab_size = 24, config.max_positions = 8, config.width = 8, config.layers = 3, config.heads = config.kv_heads = 2;
  config.head_size = 4, config.ffn_width = 16;
  return config;
}

/// A BatchReader for the model: the same tokens on all ranks.
inline void read_some(std::size_t micro_batch, std::int32_t* inputs, std::int32_t* targets) {
  for (std::int32_t i = 0; i < 16; ++i) {
    inputs[i] = (static_cast<std::int32_t>(micro_batch) * 5 + i * 7) % 24;
    targets[i] = (inputs[i] + 1) % 24;
  }
}

}  // namespace fsdp::test
