// New tokens for a tokenizer, as transformers' add_tokens() makes them: they get the ids after all others.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

struct NewToken {
  std::string content;
  bool special = false;  // a control token, which is left out of decoded text
};

/// Reads new tokens from a file, if `given` is the path of one, else from a list with commas. A file has one token per line, or
/// is a JSON list of texts and of objects with "content" and perhaps "special". `special`: of tokens that do not say it
/// themselves. Throws UserError for an empty or repeated token, and for a `given` that looks like a path without a file.
std::vector<NewToken> read_new_tokens(const std::string& given, bool special);

/// Returns the files of a tokenizer (read_files_of_tokenizer()) with these tokens added: the first gets the id `first`, which
/// is the vocabulary size of the tokenizer so far. The tokens are written to tokenizer.json and, if tokenizer_config.json lists
/// added tokens, there, too. Throws UserError if there is no tokenizer.json.
std::vector<TokenizerFile> with_new_tokens(std::vector<TokenizerFile> files, const std::vector<NewToken>& tokens,
                                           std::size_t first);

}  // namespace fsdp
