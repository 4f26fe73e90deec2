// What a model needs besides its weights to continue texts: the tokenizer that belongs to it, and the tokens that end texts.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "checkpoint/tensor_source.hpp"
#include "engine/same_files.hpp"
#include "text/end_tokens.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

/// --tokenizer, for programs that pass text to a model.
void add_model_tokenizer_option(OptionTable& table, std::string& name);

/// The folder with the files that belong to a model: its tokenizer and its chat template. For a checkpoint this is the step
/// folder. If the step folder has no tokenizer, it is the folder that the checkpoint's model came from. For another source it
/// is `path`, with which the source was opened.
std::filesystem::path folder_beside(const TensorSource& source, const std::filesystem::path& path);

/// The files, of which some may be missing, of `source`, which was opened with `path`, of the folders of folder_beside() and
/// folder_of_origin(), and of the tokenizer `name` if that is not empty; then `more`. Throws UserError.
FileLists files_of_model(const TensorSource& source, const std::filesystem::path& path, const std::string& name,
                         const FileLists& more = {});

/// The folder that a checkpoint's model came from; empty for other sources or if it is unknown.
std::filesystem::path folder_of_origin(const TensorSource& source);

/// The name of the tokenizer that find_model_tokenizer() opens, for open_tokenizer(); empty if there is none.
std::string name_of_model_tokenizer(const std::string& name, const std::filesystem::path& folder, std::size_t vocab_size);
/// Opens the tokenizer `name`. If the name is empty, opens the tokenizer in the folder `model`. If there is none, returns the
/// tokenizer of bytes if the model has 256 tokens, else null. Throws UserError.
std::unique_ptr<Tokenizer> find_model_tokenizer(const std::string& name, const std::filesystem::path& model,
                                                std::size_t vocab_size);

/// Returns a warning if the tokenizer has more tokens than the model (texts with a token that the model lacks are refused), or
/// if the user has named it by `name` and it differs from the tokenizer in the folder `model`, which may be empty.
std::optional<std::string> doubt_tokenizer(const Tokenizer& tokenizer, const std::string& name, std::size_t vocab_size,
                                           const std::filesystem::path& model);

struct ModelTexts {
  std::unique_ptr<Tokenizer> tokenizer;  // null if there is none
  EndTokens end;
};
/// Finds the tokenizer by find_model_tokenizer() and the end tokens by find_end_tokens(). `folder` and `origin` are those of
/// folder_beside() and folder_of_origin(); `name` is that of --tokenizer, or empty. If `folder` is not a folder (the model is a
/// file, or is being trained), the end tokens are those in the tokenizer's folder. Throws UserError.
ModelTexts find_model_texts(const std::filesystem::path& folder, const std::filesystem::path& origin, const std::string& name,
                            std::size_t vocab_size);

/// Throws UserError if one of `ids` is not a token of the model; `what` names the text in the message: "the prompt".
void require_tokens_of_model(const std::vector<TokenId>& ids, const Tokenizer& tokenizer, std::size_t vocab_size,
                             const std::string& what);
/// Returns the tokens of a prompt, which begin with those that the model expects before a text. Throws UserError if there are
/// none, or if one is not a token of the model.
std::vector<TokenId> encode_prompt(const std::string& text, const Tokenizer& tokenizer, std::size_t vocab_size,
                                   const std::string& what);

}  // namespace fsdp
