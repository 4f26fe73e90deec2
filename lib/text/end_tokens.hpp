// Finds the tokens that end a model's texts. Several files of the model's folder name such tokens, and may contradict each
// other.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

struct EndTokens {
  std::vector<TokenId> ids;        // the ids in config.json come first; empty if no end token is known
  std::string contradiction = {};  // a sentence if files name different special tokens (eos, bos, pad); else empty
};

/// Returns all end tokens in the files of `folder`: `eos_token_id` of config.json and generation_config.json, `eos_token` of
/// tokenizer_config.json and special_tokens_map.json, and the token that ends answers in the chat template. If no file names
/// an end token, returns the token that the tokenizer puts after texts, or otherwise what find_end_of_text() finds. If `folder`
/// has no config.json, that of `config_folder` is read. A config.json is ignored if its vocab_size differs. Ids of `vocab_size`
/// or more are left out. Without a tokenizer (nullptr) only ids are read. The folders may be empty paths. Throws UserError for
/// ids that are not integers.
EndTokens find_end_tokens(const std::filesystem::path& folder, const std::filesystem::path& config_folder,
                          const Tokenizer* tokenizer, std::size_t vocab_size);

/// The same for the files next to a tokenizer. The model has as many tokens as config.json says, or as the tokenizer has. If
/// `chat_template`, a file, is not empty, the token that ends its answers is one of them, too.
std::vector<TokenId> end_tokens_beside(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                                       const std::filesystem::path& chat_template = {});

/// Returns a sentence for a warning if config.json or generation_config.json of `folder` names end tokens and `end` is not one
/// of them; otherwise an empty text.
std::string contradiction_of_end(const std::filesystem::path& folder, const Tokenizer& tokenizer, TokenId end);

}  // namespace fsdp
