// Byte-pair encoding (Sennrich, Haddow and Birch 2016, "Neural machine translation of rare words with subword units"): of a
// piece's neighbours those merge that stand first in a list, until none stands there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace fsdp {

using TokenId = std::int32_t;

/// What tokens stand for, by their texts.
using Vocabulary = std::unordered_map<std::string_view, TokenId>;

struct BpeRules {
  enum class Units { bytes, characters };
  Units units = Units::bytes;           // what a piece consists of at first
  bool ignores_merges = false;          // a piece that is a token is that token, whatever the merges say
  std::array<TokenId, 256> of_byte{};   // characters that are no token become these; -1: there is none, see `unknown`
  std::optional<TokenId> unknown = {};  // for characters that are no tokens; without one they vanish
  bool fuses_unknown = false;           // several one after the other become one
};

/// Immutable but for notes that its users share; may be used by several threads at once.
class Bpe {
 public:
  /// `tokens` by id, each unit or text of units; empty ones are no tokens of the model. `merges` by rank: two tokens whose
  /// texts joined are a token. Throws UserError for a merge that is none.
  Bpe(std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges, const BpeRules& rules);

  /// Appends the tokens of a piece.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;
  std::optional<TokenId> find(std::string_view text) const;
  const std::vector<std::string>& tokens() const { return tokens_; }
  /// Whether characters that are no tokens become bytes, all of them.
  bool has_all_bytes() const { return has_all_bytes_; }

 private:
  struct Merge {
    TokenId left = -1, right = -1, result = -1;
    std::uint32_t rank = 0;
  };
  struct Symbol {
    TokenId id;
    std::int32_t before, behind;  // symbols; -1: none
  };
  enum class Whole : std::uint8_t { unknown, yes, no };

  const Merge* find_merge(TokenId left, TokenId right) const;
  void encode_part(std::string_view part, std::vector<TokenId>& ids) const;
  /// Where the part that begins at piece[begin] ends: no token reaches across.
  std::size_t end_of_part(std::string_view piece, std::size_t begin) const;
  void next_unit(std::string_view piece, std::size_t& at) const;
  void first_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  void merge(std::vector<Symbol>& symbols) const;

  std::vector<std::string> tokens_;
  Vocabulary vocabulary_;
  std::vector<Merge> merges_;  // a hash table with open addresses
  std::size_t mask_ = 0;
  BpeRules rules_;
  bool has_all_bytes_ = false;
  bool has_all_units_ = false;  // nothing is unknown
  // Two units that stand side by side in some token. Where a text has other neighbours it can be cut: what would merge across
  // them would be such a token.
  std::unordered_set<std::string_view> neighbours_;
  // Whether a token's own text becomes that one token: found out when first asked. Most pieces are tokens.
  std::unique_ptr<std::atomic<Whole>[]> is_whole_;
};

}  // namespace fsdp
