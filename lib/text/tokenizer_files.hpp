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
/// them, whatever its own name; without what lies beside a file that has another name. None for bytes. Throws UserError. A
/// tokenizer_config.json is among them that names the tokenizer_class: config.json, which may decide that, does not come along.
std::vector<TokenizerFile> read_files_of_tokenizer(const std::string& name);
/// The checksums of the files that say which tokens a text has; "bytes" for bytes. Throws the same.
std::string sum_of_tokenizer(const std::string& name);
/// Whether the folder has tokenizer.json, tokenizer.model or vocab.json.
bool has_tokenizer(const std::filesystem::path& folder);

/// The token that ends a text: the tokenizer's eos_token, or else what tokenizers usually call it. `names`, if not null, is
/// what was looked for.
std::optional<TokenId> find_end_of_text(const Tokenizer& tokenizer, std::vector<std::string>* names = nullptr);

}  // namespace fsdp
