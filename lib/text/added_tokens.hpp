// Tokens that are found in a text before anything else is done to it, whatever the model would make of it: "<|endoftext|>".
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
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // not within a word
  bool takes_left = false;   // with the spaces before it
  bool takes_right = false;  // with the spaces behind it
  bool special = false;      // says something to the model, and nothing to a reader
  /// Looked for in the normalized text. If nothing says so: unless it is special.
  std::optional<bool> normalized = std::nullopt;
  bool is_normalized() const { return normalized.value_or(!special); }
};

/// Of a text: a token, or what lies between two of them (id -1).
struct TextSection {
  TokenId id = -1;
  TextRange range;
};

class AddedTokens {
 public:
  /// What is looked for is `content`, which may not be empty.
  void add(const AddedToken& token);
  /// Sections in order that cover the text; of tokens that begin at the same place the longest. No section is empty.
  std::vector<TextSection> find_all(std::string_view text) const;

 private:
  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // the longest first
  std::vector<unsigned char> first_bytes_;
};

}  // namespace fsdp
