// Which token comes next, given a model's logits: the names and the order of steps are those of transformers' generate().
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "text/bpe.hpp"

namespace fsdp {

struct SamplingOptions {
  double temperature = 1;         // divides the logits; 0: always the likeliest token (greedy)
  std::size_t top_k = 0;          // only the top_k likeliest tokens; 0: all
  double top_p = 1;               // of these only the fewest that together have this probability (Holtzman et al. 2020)
  double repetition_penalty = 1;  // divides positive logits of tokens that were there, multiplies negative ones (Keskar 2019)
};

/// Draws tokens; allocates nothing after it is made. Not for several threads at once.
class Sampler {
 public:
  /// For vocabularies of `vocab_size` tokens at most.
  Sampler(const SamplingOptions& options, std::size_t vocab_size);

  /// The next token. logits[V], which the repetition penalty of the tokens `seen` changes; `uniform` in [0, 1) chooses among
  /// what temperature, top_k and top_p leave, likelier tokens first. Equally likely ones go by their numbers.
  TokenId draw(std::span<float> logits, std::span<const TokenId> seen, double uniform);

 private:
  void punish_repetition(std::span<float> logits, std::span<const TokenId> seen);

  SamplingOptions options_;
  std::vector<std::size_t> heap_;     // tokens, the likeliest in front
  std::vector<double> drawn_;         // weights of those taken from it, which stand behind it
  std::vector<std::size_t> turn_of_;  // when each token was last punished
  std::size_t turn_ = 0;
};

}  // namespace fsdp
