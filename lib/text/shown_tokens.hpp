// Tokens as text for people: which of them count in the loss, and where documents begin.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/tokenizer.hpp"

namespace fsdp {

/// A run of tokens as text: of one document, and all of them count in the loss or none does.
struct ShownText {
  std::string text;
  bool is_target = false, begins_document = false;
};

/// The runs of `ids`; special tokens are spelled. `mask` has 1 for each token that counts in the loss; if it is empty, no token
/// is marked as a target. `documents` has the indices at which documents begin, in ascending order. The text has at most about
/// `most` bytes; if tokens are left out, the last run is "...".
std::vector<ShownText> shown_tokens(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::span<const TokenId> mask,
                                    std::span<const std::size_t> documents, std::size_t most = 300);
/// The beginning of a sequence, and the tokens around its first target if that comes much later. `mask` is as long as `ids`.
std::vector<ShownText> shown_sequence(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::span<const TokenId> mask,
                                      std::span<const std::size_t> documents);
/// On one line, with "[[" and "]]" around what counts in the loss, for messages.
std::string marked(const std::vector<ShownText>& shown);

/// A list of objects with `text` and, if they are true, `is_target` and `begins_document`. The inverse leaves out what is of
/// another type.
nlohmann::ordered_json to_json(const std::vector<ShownText>& shown);
std::vector<ShownText> shown_of_json(const nlohmann::json& list);

}  // namespace fsdp
