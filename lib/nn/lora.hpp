// Low-rank adapters (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1). A projection y = x W
// of a block becomes y = x W + scale * (drop(x) A^T) B^T. W is frozen; A[rank,in] and B[out,rank] are trained. Names, initial
// values and scaling are those of PEFT (peft/tuners/lora).
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace fsdp {

/// The fields have PEFT's meanings; docs/api-options.md explains each.
struct Lora {
  std::size_t rank = 0;          // PEFT's r; 0: no adapters, which TransformerDescription::lora() refuses
  double alpha = 8;              // lora_alpha
  double dropout = 0;            // lora_dropout: the rate of drop(), in [0, 1); no dropout in evaluation
  bool rank_stabilized = false;  // use_rslora (Kalajdzievski 2023, "A rank stabilization scaling factor for fine-tuning")
  /// The projections that get adapters (target_modules): names of modules ("q_proj"), also with their path, or shell globs over
  /// module names; "all-linear": all projections of the blocks. Empty: as PEFT, the projections to queries and values.
  std::vector<std::string> targets = {};

  /// The factor of the adapters' outputs.
  double scale() const { return alpha / (rank_stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank)); }
  bool operator==(const Lora&) const = default;
};

}  // namespace fsdp
