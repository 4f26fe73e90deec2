// Byte-pair encoding (Sennrich, Haddow and Birch 2016, "Neural machine translation of rare words with subword units"). A piece
// of text, such as a word, is divided into units: bytes or characters. Then, of all pairs of
// adjacent tokens, the one that comes first in a list of merges is joined. This is repeated until no pair is in the list.
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

/// The ids of tokens by their texts.
using Vocabulary = std::unordered_map<std::string_view, TokenId>;

struct BpeRules {
  enum class Units { bytes, characters };
  Units units = Units::bytes;
  bool ignores_merges = false;          // a piece whose text is a token becomes that token, without merges
  std::array<TokenId, 256> of_byte{};   // byte fallback: if a unit has no token, its bytes get these tokens; -1: none
  std::optional<TokenId> unknown = {};  // stands for other units that have no token; if not set, such units are dropped
  bool fuses_unknown = false;           // consecutive unknown units become one token
};

/// Immutable except for a shared cache; may be used by several threads at once.
class Bpe {
 public:
  /// `tokens` are the texts by id; an empty text means that the model has no token with this id. `merges` are pairs of texts in
  /// order of rank. Throws UserError if a text of a pair, or the joined text, is no token.
  Bpe(std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges, const BpeRules& rules);

  /// Appends the tokens of a piece.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;
  std::optional<TokenId> find(std::string_view text) const;
  const std::vector<std::string>& tokens() const { return tokens_; }
  /// Returns true if byte fallback has tokens for all 256 bytes, so that no character is unknown.
  bool has_all_bytes() const { return has_all_bytes_; }

 private:
  struct Merge {
    TokenId left = -1, right = -1, result = -1;
    std::uint32_t rank = 0;
  };
  struct Symbol {
    TokenId id;
    std::int32_t before, after;  // indices of symbols; -1: none
  };
  enum class Whole : std::uint8_t { unknown, yes, no };

  const Merge* find_merge(TokenId left, TokenId right) const;
  void encode_part(std::string_view part, std::vector<TokenId>& ids) const;
  /// Returns the end of a part that begins at piece[begin] and can be encoded without the rest, because no token spans this
  /// end.
  std::size_t end_of_part(std::string_view piece, std::size_t begin) const;
  void next_unit(std::string_view piece, std::size_t& at) const;
  void first_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  void merge(std::vector<Symbol>& symbols) const;

  std::vector<std::string> tokens_;
  Vocabulary vocabulary_;
  std::vector<Merge> merges_;  // a hash table with open addressing
  std::size_t mask_ = 0;
  BpeRules rules_;
  bool has_all_bytes_ = false;
  bool has_all_units_ = false;  // every unit has a token, or tokens for its bytes
  // All pairs of units that are adjacent in the text of some token. A text may be cut between two units that are no such pair,
  // because no token has these two units next to each other.
  std::unordered_set<std::string_view> neighbours_;
  // Indexed by token id. The value is `yes` if encoding the token's text gives this one token, and `unknown` until the text is
  // first encoded. This cache saves most merges, because most pieces are one token.
  std::unique_ptr<std::atomic<Whole>[]> is_whole_;
};

}  // namespace fsdp
