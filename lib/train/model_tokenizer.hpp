// The tokenizer that belongs to a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "base/options.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// --tokenizer of programs that give a model text.
void add_model_tokenizer_option(OptionTable& table, std::string& name);

/// The tokenizer `name`; without one, tokenizer.json or tokenizer.model in the model's folder, or bytes where the model has 256
/// tokens, or nullptr. Throws UserError, also for one that has more tokens than the model.
std::unique_ptr<Tokenizer> find_model_tokenizer(const std::string& name, const std::filesystem::path& model,
                                                std::size_t vocab_size);

}  // namespace fsdp
