// A tokenizer is a folder: what its files say together, as transformers' AutoTokenizer (5.24) takes them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/added_tokens.hpp"
#include "text/bpe.hpp"

namespace fsdp {

/// A token and its id, as a file says it.
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
  std::vector<std::string> before_text, behind_text;  // tokens, beside those of the post-processor
  bool splits_special = false;                        // special tokens are not looked for in texts
  std::vector<TokenClaim> claims;                     // that may not hold; each that does not is a warning
  std::vector<std::string> warnings;
};

/// What `file`, a tokenizer.json, a tokenizer.model or a vocab.json, and the files next to it say: tokenizer_config.json,
/// special_tokens_map.json, added_tokens.json, merges.txt, config.json (the kind of model and of tokenizer). Throws UserError
/// for what is not known here, by its name.
TokenizerDescription describe_tokenizer(const std::filesystem::path& file);
/// What the file alone says: a tokenizer.json.
TokenizerDescription describe_tokenizer_json(const nlohmann::json& file);

/// The text of a tokenizer_config.json that names the tokenizer_class of this folder's tokenizer, for copies to folders with
/// another config.json, which would decide otherwise; its own text if it does. Empty if there is neither that nor a tokenizer.
std::string config_that_travels(const std::filesystem::path& folder);
/// The same for a tokenizer.json, or else a tokenizer.model, that was read by itself.
std::string config_that_travels_alone(bool is_json);

}  // namespace fsdp
