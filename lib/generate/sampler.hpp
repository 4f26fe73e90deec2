// Draws the next token from a model's logits. The names of the settings and the order of the steps are those of transformers'
// generate().
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "text/bpe.hpp"

namespace fsdp {

struct SamplingOptions {
  double temperature = 1;         // divides the logits; 0: always the most likely token (greedy)
  std::size_t top_k = 0;          // keeps only the top_k most likely tokens; 0: all
  double top_p = 1;               // of these, keeps the fewest with this share of the probability (Holtzman et al. 2020)
  double repetition_penalty = 1;  // divides positive logits of earlier tokens, multiplies negative ones (Keskar 2019)
};

/// Draws tokens. Allocates only in its constructor. Only one thread may use it at a time.
class Sampler {
 public:
  /// For vocabularies of at most `vocab_size` tokens.
  Sampler(const SamplingOptions& options, std::size_t vocab_size);

  /// Returns the next token. `logits` has one logit per token; the repetition penalty changes the logits of the tokens in
  /// `seen`. `uniform` is a random number in [0, 1). It selects one of the tokens that top_k and top_p keep, which are sorted
  /// by descending probability and, if equally likely, by ascending id.
  TokenId draw(std::span<float> logits, std::span<const TokenId> seen, double uniform);

 private:
  void punish_repetition(std::span<float> logits, std::span<const TokenId> seen);

  SamplingOptions options_;
  std::vector<std::size_t> heap_;     // a heap of tokens, the most likely at the front
  std::vector<double> drawn_;         // weights of the popped tokens; the tokens themselves are at the end of heap_
  std::vector<std::size_t> turn_of_;  // by token: the value of turn_ in the call of draw() that last penalized it
  std::size_t turn_ = 0;
};

}  // namespace fsdp
