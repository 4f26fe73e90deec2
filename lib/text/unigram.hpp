// The Unigram model (Kudo 2018, "Subword regularization"): splits a piece into tokens so that the sum of their scores is
// highest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.hpp"

namespace fsdp {

/// Immutable; may be used by several threads at once.
class Unigram {
 public:
  /// `tokens` and `scores` are indexed by id. A character without a token becomes the token `unknown`. If `byte_fallback` is
  /// true and the character's bytes have tokens (<0x00> to <0xFF>), the character becomes these tokens instead. Throws
  /// UserError for scores that are not finite.
  Unigram(std::vector<std::string> tokens, std::vector<double> scores, std::optional<TokenId> unknown, bool byte_fallback);

  /// Appends the tokens of a piece. As in Hugging Face's tokenizers, consecutive unknown characters become one token. Throws
  /// RunError if an unknown token is needed and there is none.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;
  std::optional<TokenId> find(std::string_view text) const;
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  /// An edge of the trie of all tokens. Edges are in a hash table with open addressing.
  struct Edge {
    std::uint64_t key = 0;  // parent node * 256 + byte + 1; or 0 if this entry of the hash table is empty
    std::uint32_t node = 0;
    TokenId token = -1;
  };
  const Edge* follow(std::uint32_t node, char byte) const;
  void add_to_trie(std::string_view token, TokenId id);
  void append_unknown(std::string_view text, std::vector<TokenId>& ids) const;

  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  std::vector<Edge> edges_;
  std::size_t mask_ = 0;
  std::uint32_t nodes_ = 1;
  std::optional<TokenId> unknown_;
  bool byte_fallback_;
  double unknown_score_ = 0;
};

}  // namespace fsdp
