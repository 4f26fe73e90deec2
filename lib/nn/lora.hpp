// Low-rank adapters (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1). A projection y = x W
// of a block, or to the vocabulary, becomes y = x W + scale * (drop(x) A^T) B^T. W is frozen; A[rank,in] and B[out,rank] are
// trained. The embedding of token t becomes W[t,:] + scale * A[:,t]^T B^T. An adapter of an embedding that is tied to the head
// does not change the head, and the other way round. Names, initial values and scaling are those of PEFT (peft/tuners/lora).
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

/// The fields have PEFT's meanings; docs/api-options.md explains each.
struct Lora {
  std::size_t rank = 0;          // PEFT's r; 0: no adapters, which TransformerDescription::lora() refuses
  double alpha = 8;              // lora_alpha
  double dropout = 0;            // lora_dropout: the rate of drop(), in [0, 1); no dropout in evaluation
  bool rank_stabilized = false;  // use_rslora (Kalajdzievski 2023, "A rank stabilization scaling factor for fine-tuning")
  /// The modules that get adapters (target_modules): names ("q_proj", "embed_tokens", "lm_head"), also with their path, or
  /// shell globs over the names of projections of the blocks; "all-linear": all of these projections. Empty: as PEFT, the
  /// projections to queries and values.
  std::vector<std::string> targets = {};
  /// Ranks and alphas of modules that differ from `rank` and `alpha` (rank_pattern, alpha_pattern), by name as in `targets`.
  /// The first name that means a module counts.
  std::vector<std::pair<std::string, double>> ranks = {}, alphas = {};
  std::vector<std::size_t> layers = {};           // the blocks that get adapters (layers_to_transform); empty: all
  std::vector<std::string> modules_to_save = {};  // ends of names of modules that are trained as a whole
  /// Token ids (trainable_token_indices). Row i of the adapter's matrix replaces row tokens[i] of the embedding, or of a head
  /// that is not tied to it, and is trained.
  std::vector<std::size_t> tokens = {}, head_tokens = {};
  /// The vocabulary sizes of the base model and of the model, if the adapter has rows for further tokens; else 0.
  std::size_t base_vocab = 0, vocab = 0;

  /// The factor of the adapters' outputs, except of modules in `ranks` or `alphas`.
  double scale() const { return alpha / (rank_stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank)); }
  std::size_t rank_of(std::string_view module) const;
  double alpha_of(std::string_view module) const;
  double scale_of(std::string_view module) const;
  /// The largest rank of a module.
  std::size_t most_rank() const;
  bool operator==(const Lora&) const = default;
};

/// The end of the name of an adapter's rows of a table, which follows the name of the module.
inline constexpr const char* token_rows_suffix = ".token_adapter.trainable_tokens_delta";

}  // namespace fsdp
