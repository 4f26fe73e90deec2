// The tokens that end a model's texts: all that the files of its folder name. The files may contradict each other.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

struct EndTokens {
  std::vector<TokenId> ids;        // those of config.json first; none where nothing is known
  std::string contradiction = {};  // a sentence if files name different special tokens (eos, bos, pad); else empty
};

/// The union of `eos_token_id` of config.json and of generation_config.json, `eos_token` of tokenizer_config.json and of
/// special_tokens_map.json, and the end of answers by the chat template, as far as `folder` has these files. If none names
/// a token: the one that the tokenizer puts after texts, or else its "<|endoftext|>" or "</s>". config.json is that of
/// `config_folder` if `folder` has none; it does not count if its vocabulary has another size. Ids from `vocab_size` on are
/// left out. Without a tokenizer (nullptr) only ids are read. Folders may be empty paths. Throws UserError for bad ids.
EndTokens find_end_tokens(const std::filesystem::path& folder, const std::filesystem::path& config_folder,
                          const Tokenizer* tokenizer, std::size_t vocab_size);

/// A sentence if config.json or generation_config.json of `folder` name tokens that end texts, and `end` is none of them; else
/// empty.
std::string contradiction_of_end(const std::filesystem::path& folder, const Tokenizer& tokenizer, TokenId end);

}  // namespace fsdp
