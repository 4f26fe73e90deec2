// The files that define a model's tokenizer and its generation settings. They are copied from the model's
// original folder, or from the given tokenizer, into every checkpoint and every consolidated folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

/// Returns true if `name` is the name of such a file: tokenizer.json, tokenizer.model, vocab.json, chat_template.jinja,
/// generation_config.json, ...
bool is_tokenizer_file(const std::string& name);

struct TokenizerFile {
  std::string name, text;
};
/// Reads all such files of a folder. Throws what read_text_file() throws.
std::vector<TokenizerFile> read_tokenizer_files(const std::filesystem::path& folder);
/// Reads the files of the tokenizer that open_tokenizer(name) opens. A vocabulary file with an unusual name is returned as
/// tokenizer.json or tokenizer.model, without the files next to it. "bytes" has no files. The returned
/// tokenizer_config.json names the tokenizer_class, because config.json, which may define it, is not copied. Throws UserError.
std::vector<TokenizerFile> read_files_of_tokenizer(const std::string& name);
/// The files that are read to tokenize texts and conversations and to end texts with the folder or tokenizer file `path`. Some
/// may be missing, and `path` may be empty.
std::vector<std::filesystem::path> tokenizer_files_at(const std::filesystem::path& path);
/// Returns the checksums of the tokenizer's files that determine the tokens of a text, or "bytes" if `name` is "bytes". Throws
/// UserError.
std::string sum_of_tokenizer(const std::string& name);
/// Returns true if the folder has tokenizer.json, tokenizer.model or vocab.json.
bool has_tokenizer(const std::filesystem::path& folder);

/// Returns the token that ends a text. It is the tokenizer's eos_token, or otherwise a token with a common name, such as
/// "<|endoftext|>".
/// `names`, if not null, receives the names that were tried.
std::optional<TokenId> find_end_of_text(const Tokenizer& tokenizer, std::vector<std::string>* names = nullptr);

}  // namespace fsdp
