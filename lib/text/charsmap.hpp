// The normalizer Precompiled: a table of SentencePiece that maps characters to texts.
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
  /// The table as a model of SentencePiece has it: a trie in a double array (Darts), and the texts that it leads to. Throws
  /// UserError for one that is damaged.
  explicit Charsmap(std::string_view table);
  /// The table in base64, as tokenizer.json has it.
  static std::string from_base64(std::string_view text);

  /// Normalizes a text as Hugging Face's tokenizers does: a short cluster is replaced by the entry of its first characters;
  /// without such an entry each character is replaced by its own.
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
