// The normalizer "Precompiled": SentencePiece's table that maps characters to texts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pattern.hpp"

namespace fsdp {

class Charsmap {
 public:
  /// Reads the table of a SentencePiece model: a trie in a double array (Darts), and the texts that its leaves refer to.
  /// Throws UserError if the table is damaged.
  explicit Charsmap(std::string_view table);
  /// Decodes the table of a tokenizer.json, which is in base64.
  static std::string from_base64(std::string_view text);

  /// Normalizes a text like Hugging Face's tokenizers. A grapheme cluster of at most 5 bytes is replaced by the table's entry
  /// for its first characters. If there is no entry, or the cluster is longer, each character is replaced by its own entry.
  std::string operator()(const std::string& text) const;

 private:
  std::optional<std::string_view> find(std::string_view characters) const;
  void append(std::string_view cluster, std::string& out) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
  std::array<std::string, 128> of_ascii_;
  Pattern clusters_;
};

}  // namespace fsdp
