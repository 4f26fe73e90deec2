// Reads a tokenizer from all files of its folder, as transformers' AutoTokenizer (5.24) does.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/added_tokens.hpp"
#include "text/bpe.hpp"

namespace fsdp {

/// A token and its id according to a file.
struct TokenClaim {
  std::string file;
  std::string content;
  TokenId id = 0;
};

/// A tokenizer as tokenizer.json describes it, whichever files it comes from.
struct TokenizerDescription {
  nlohmann::json json;                                // model, normalizer, pre_tokenizer, post_processor, decoder
  std::vector<AddedToken> added;                      // in the order in which they are added; id -1: the next one
  std::map<std::string, std::string> special_tokens;  // by name: "eos_token"
  std::vector<std::string> before_text, behind_text;  // tokens besides those of the post-processor
  bool splits_special = false;                        // special tokens are not looked for in texts
  std::vector<TokenClaim> claims;                     // each one that is not true becomes a warning
  std::vector<std::string> warnings;
};

/// Reads `file`, a tokenizer.json, tokenizer.model or vocab.json, and the files next to it: tokenizer_config.json,
/// special_tokens_map.json, added_tokens.json, merges.txt, config.json (the kind of model and of tokenizer). Throws UserError
/// with the name of an unknown part.
TokenizerDescription describe_tokenizer(const std::filesystem::path& file);
/// The same for a tokenizer.json without other files.
TokenizerDescription describe_tokenizer_json(const nlohmann::json& file);

/// The folder's tokenizer_config.json, with its tokenizer_class added if config.json decides it: a copy may have another
/// config.json. Empty if the folder has neither that file nor a tokenizer.
std::string config_that_travels(const std::filesystem::path& folder);
/// The same for a tokenizer.json, or else a tokenizer.model, that was read by itself.
std::string config_that_travels_alone(bool is_json);

}  // namespace fsdp
