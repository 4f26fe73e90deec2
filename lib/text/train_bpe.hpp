// Trains a tokenizer on text: byte-level byte-pair encoding within the words of GPT-2's pre-tokenizer.
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
  /// The first ids are those of special tokens; the 256 bytes and then the learned tokens follow. Throws UserError if the
  /// vocabulary has no room for the bytes.
  BpeTrainer(std::size_t vocab_size, std::vector<std::string> special_tokens);
  /// Counts the words of a text. Bytes that are not UTF-8 count as U+FFFD.
  void add(std::string_view text);
  /// The places at which a text may be cut so that adding its parts is the same as adding the whole text.
  static CutRules cuts() { return {.at_space = true, .at_line_end = true, .after_any_letter = true}; }
  /// Returns the tokenizer in the form of tokenizer.json. Each learned token joins the two tokens that are most often adjacent
  /// in words; of equally frequent pairs, the one with the lower ids. Training ends early if no pair occurs twice (Sennrich et
  /// al. 2016, algorithm 1). The same texts give the same tokenizer in any order.
  nlohmann::ordered_json train() const;

 private:
  std::size_t vocab_size_;
  std::vector<std::string> special_tokens_;
  AddedTokens special_;  // found in texts, and not counted as words
  std::unordered_map<std::string, std::uint64_t> words_;
};

}  // namespace fsdp
