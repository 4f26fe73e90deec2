// Added tokens, such as "<|endoftext|>": they are found in a text before the pre-tokenizer splits it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.hpp"
#include "text/pattern.hpp"

namespace fsdp {

struct AddedToken {
  TokenId id = -1;  // none yet
  std::string content;
  bool single_word = false;  // the token is found only as a whole word
  bool takes_left = false;   // the token includes the spaces before it
  bool takes_right = false;  // the token includes the spaces after it
  bool special = false;      // the token is a control token, and is left out of decoded text
  /// If true, the token is looked for in the normalized text, else in the original text. If not set: true unless `special`.
  std::optional<bool> normalized = std::nullopt;
  bool is_normalized() const { return normalized.value_or(!special); }
};

/// A section of a text is an added token, or the text between two added tokens. In the second case `id` is -1.
struct TextSection {
  TokenId id = -1;
  TextRange range;
};

class AddedTokens {
 public:
  /// Adds a token that find_all() looks for. Its `content` must not be empty.
  void add(const AddedToken& token);
  /// Divides a text into sections, in order. Of several tokens that begin at the same place the longest is taken. No section is
  /// empty.
  std::vector<TextSection> find_all(std::string_view text) const;

 private:
  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // tokens by their first byte, the longest first
  std::vector<unsigned char> first_bytes_;
};

}  // namespace fsdp
