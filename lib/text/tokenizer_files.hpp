// The files that say how a model's text becomes tokens, and how it generates. They travel with the model: from the folder that
// it came from, or from where its tokenizer was named, into every checkpoint and into consolidated folders.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace fsdp {

/// By its name: tokenizer.json, tokenizer.model, vocab.json, chat_template.jinja, generation_config.json, ...
bool is_tokenizer_file(const std::string& name);

struct TokenizerFile {
  std::string name, text;
};
/// Those that a folder has. Throws what read_text_file() throws.
std::vector<TokenizerFile> read_tokenizer_files(const std::filesystem::path& folder);
/// The files of the tokenizer that open_tokenizer() opens by this name. A file of another name is called tokenizer.json or
/// tokenizer.model here, and comes without the files next to it. None for bytes. The tokenizer_config.json among them names the
/// tokenizer_class, which config.json may decide, as that is not copied. Throws UserError.
std::vector<TokenizerFile> read_files_of_tokenizer(const std::string& name);
/// The checksums of the files that decide the tokens of a text; "bytes" for bytes. Throws the same.
std::string sum_of_tokenizer(const std::string& name);
/// Whether the folder has tokenizer.json, tokenizer.model or vocab.json.
bool has_tokenizer(const std::filesystem::path& folder);

/// The token that ends a text: the tokenizer's eos_token, or else a usual name of such a token. `names`, if not null, receives
/// the names that were tried.
std::optional<TokenId> find_end_of_text(const Tokenizer& tokenizer, std::vector<std::string>* names = nullptr);

}  // namespace fsdp
