// Learns a tokenizer from text: byte-level byte-pair encoding, over GPT-2's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/added_tokens.hpp"
#include "text/text_cuts.hpp"

namespace fsdp {

class BpeTrainer {
 public:
  /// Special tokens have the first ids, then come the 256 bytes, then what is learned. Throws UserError if there is no room for
  /// the bytes.
  BpeTrainer(std::size_t vocab_size, std::vector<std::string> special_tokens);
  /// Counts the words of a text; what is not UTF-8 counts as U+FFFD.
  void add(std::string_view text);
  /// Where a text can be cut so that its parts, added one by one, count as the whole.
  static CutRules cuts() { return {.at_space = true, .at_line_end = true, .after_any_letter = true}; }
  /// The tokenizer in the form of tokenizer.json. Each token that is learned joins the two neighbours that are most often side
  /// by side in words, those with the lower ids where several are; it ends early when none are so twice (Sennrich et al. 2016,
  /// algorithm 1). The same texts give the same tokenizer, in whatever order they come.
  nlohmann::ordered_json train() const;

 private:
  std::size_t vocab_size_;
  std::vector<std::string> special_tokens_;
  AddedTokens special_;  // no words
  std::unordered_map<std::string, std::uint64_t> words_;
};

}  // namespace fsdp
