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

/// The id that a file gives to a token.
struct TokenClaim {
  std::string file;
  std::string content;
  TokenId id = 0;
};

/// A description of a tokenizer in the form of tokenizer.json, made from any of its files.
struct TokenizerDescription {
  nlohmann::json json;            // model, normalizer, pre_tokenizer, post_processor, decoder
  std::vector<AddedToken> added;  // in the order in which their ids are given; id -1: the token gets the next free id
  std::map<std::string, std::string> special_tokens;  // texts by name, such as "eos_token"
  std::vector<std::string> before_text, after_text;   // tokens next to a text, besides those of the post-processor
  bool splits_special = false;                        // if true, special tokens are not looked for in texts
  std::vector<TokenClaim> claims;                     // a claim is checked, and causes a warning if the token has another id
  std::vector<std::string> warnings;
};

/// The names of special tokens, in the order in which transformers adds these tokens.
inline constexpr const char* named_tokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

/// Returns true for tokenizer.json, tokenizer.model and vocab.json.
bool is_vocabulary_name(const std::string& name);
/// The vocabulary of a folder: the first of these files that it has; empty if it has none.
std::filesystem::path vocabulary_in(const std::filesystem::path& folder);

/// Reads `file`, a tokenizer.json (`is_json`), tokenizer.model or vocab.json, and the files next to it: tokenizer_config.json,
/// special_tokens_map.json, added_tokens.json, merges.txt and config.json (for the type of the model and the tokenizer's
/// class). A tokenizer.json or tokenizer.model with another name is read without the files next to it. Throws UserError with
/// the name of an unknown part.
TokenizerDescription describe_tokenizer(const std::filesystem::path& file, bool is_json);

/// Returns the text of tokenizer_config.json for a copy of the folder's tokenizer. If config.json determines the class,
/// tokenizer_class is added, because the copy may be next to another config.json. Empty if the folder has neither a
/// tokenizer_config.json nor a tokenizer.
std::string config_that_travels(const std::filesystem::path& folder);
/// Returns the text of tokenizer_config.json for a copy of a tokenizer that is one file without others next to it. The file is
/// a tokenizer.json, or a tokenizer.model if `is_json` is false.
std::string config_that_travels_alone(bool is_json);

}  // namespace fsdp
