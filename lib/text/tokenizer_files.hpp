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
/// Those of the tokenizer that open_tokenizer() opens by this name, which is called tokenizer.json or tokenizer.model among
/// them, whatever its own name; without what lies beside a file that has another name. None for bytes. Throws UserError.
std::vector<TokenizerFile> read_files_of_tokenizer(const std::string& name);
/// Whether the folder has tokenizer.json or tokenizer.model.
bool has_tokenizer(const std::filesystem::path& folder);

/// The token that ends a text: `eos_token` of a tokenizer_config.json in the folder, or else what tokenizers usually call it.
/// The folder may be empty: none is known. `names`, if not null, is what was looked for.
std::optional<TokenId> find_end_of_text(const Tokenizer& tokenizer, const std::filesystem::path& folder,
                                        std::vector<std::string>* names = nullptr);

}  // namespace fsdp
