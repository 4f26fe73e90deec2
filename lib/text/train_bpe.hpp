// Trains a tokenizer on text: byte-level byte-pair encoding within the words of GPT-2's pre-tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  /// The special tokens get the first ids, the 256 bytes the next ones, and the learned tokens the others. Throws UserError if
  /// `vocab_size` is too small for the special tokens and the bytes.
  BpeTrainer(std::size_t vocab_size, std::vector<std::string> special_tokens);
  /// Counts the words of a text. Bytes that are not UTF-8 count as U+FFFD.
  void add(std::string_view text);
  /// The places at which a text may be cut so that adding its parts is the same as adding the whole text.
  static CutRules cuts() { return {.at_space = true, .at_line_end = true, .after_any_letter = true}; }
  /// Returns the tokenizer in the form of tokenizer.json. Each learned token joins the two tokens that are most often adjacent
  /// in words. If several pairs are equally frequent, the pair with the lowest ids is joined. Training ends early if no pair
  /// occurs twice (Sennrich et al. 2016, algorithm 1). The same texts give the same tokenizer in any order. `progress` is
  /// called with the number of tokens before each join.
  nlohmann::ordered_json train(const std::function<void(std::size_t tokens)>& progress = nullptr) const;

 private:
  std::size_t vocab_size_;
  std::vector<std::string> special_tokens_;
  AddedTokens special_;  // special tokens; where they occur in a text, they are not counted as words
  std::unordered_map<std::string, std::uint64_t> words_;
};

}  // namespace fsdp
