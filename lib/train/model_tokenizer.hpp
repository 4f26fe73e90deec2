// The tokenizer that belongs to a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "base/options.hpp"
#include "checkpoint/tensor_source.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// --tokenizer of programs that give a model text.
void add_model_tokenizer_option(OptionTable& table, std::string& name);

/// The folder in which the files beside a model lie: its tokenizer, its chat template. Of a checkpoint that is its step folder,
/// or else the folder that the model came from; `path` is what the source was opened by.
std::filesystem::path folder_beside(const TensorSource& source, const std::filesystem::path& path);

/// The name, for open_tokenizer(), of the tokenizer that find_model_tokenizer() finds; empty if there is none.
std::string name_of_model_tokenizer(const std::string& name, const std::filesystem::path& folder, std::size_t vocab_size);
/// The tokenizer `name`; without one, tokenizer.json or tokenizer.model in the model's folder, or bytes where the model has 256
/// tokens, or nullptr. Throws UserError, also for one that has more tokens than the model.
std::unique_ptr<Tokenizer> find_model_tokenizer(const std::string& name, const std::filesystem::path& model,
                                                std::size_t vocab_size);

/// Throws UserError if `tokenizer` has more tokens than the model: it is that of another. `who` names it: "the tokenizer 'x'".
void require_tokenizer_of_model(const Tokenizer& tokenizer, std::size_t vocab_size, const std::string& who,
                                const char* remedy = "give the model's own");

}  // namespace fsdp
