// The tokenizer that belongs to a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "checkpoint/tensor_source.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// --tokenizer of programs that give a model text.
void add_model_tokenizer_option(OptionTable& table, std::string& name);

/// The folder in which the files beside a model lie: its tokenizer, its chat template. Of a checkpoint that is its step folder,
/// or else the folder that the model came from; `path` is what the source was opened by.
std::filesystem::path folder_beside(const TensorSource& source, const std::filesystem::path& path);

/// The folder that a checkpoint's model came from; else empty.
std::filesystem::path folder_of_origin(const TensorSource& source);

/// The name, for open_tokenizer(), of the tokenizer that find_model_tokenizer() finds; empty if there is none.
std::string name_of_model_tokenizer(const std::string& name, const std::filesystem::path& folder, std::size_t vocab_size);
/// The tokenizer `name`. Without a name: that of the model's folder, else bytes if the model has 256 tokens, else nullptr.
/// Throws UserError.
std::unique_ptr<Tokenizer> find_model_tokenizer(const std::string& name, const std::filesystem::path& model,
                                                std::size_t vocab_size);

/// A warning if the tokenizer has more tokens than the model: texts that hold one of the others are refused.
std::optional<std::string> doubt_tokenizer(const Tokenizer& tokenizer, std::size_t vocab_size);
/// Throws UserError for a token that the model does not have; `what` holds the tokens: "the prompt".
void require_tokens_of_model(const std::vector<TokenId>& ids, const Tokenizer& tokenizer, std::size_t vocab_size,
                             const std::string& what);

}  // namespace fsdp
