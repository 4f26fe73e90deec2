#include "options/model_tokenizer.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "checkpoint/checkpoint.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

void add_model_tokenizer_option(OptionTable& table, std::string& name) {
  table
      .text("tokenizer", "NAME", name,
            "the model's tokenizer: a folder with tokenizer.json, tokenizer.model or vocab.json, one of these files, or bytes")
      .unset("the one that comes with MODEL, or bytes if the model has 256 tokens")
      .sets("tokenizer");
}

std::filesystem::path folder_beside(const TensorSource& source, const std::filesystem::path& path) {
  if (std::filesystem::path own = source.tokenizer_folder(); has_tokenizer(own)) return own;
  const CheckpointReader* const checkpoint = source.checkpoint();
  if (!checkpoint) return path;
  const std::filesystem::path before = checkpoint->header().model_folder;
  if (!has_tokenizer(checkpoint->folder()) && !before.empty() && has_tokenizer(before) &&
      kind_of(before / "config.json") == PathKind::file && read_config(before).vocab_size == source.config().vocab_size)
    return before;
  return checkpoint->folder();
}

FileLists files_of_model(const TensorSource& source, const std::filesystem::path& path, const std::string& name,
                         const FileLists& more) {
  FileLists all = {source.files(), tokenizer_files_at(folder_beside(source, path)),
                   tokenizer_files_at(folder_of_origin(source)), tokenizer_files_at(name)};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::filesystem::path folder_of_origin(const TensorSource& source) {
  const CheckpointReader* const checkpoint = source.checkpoint();
  return checkpoint ? checkpoint->header().model_folder : "";
}

std::string name_of_model_tokenizer(const std::string& name, const std::filesystem::path& folder, std::size_t vocab_size) {
  if (!name.empty()) return name;
  if (has_tokenizer(folder)) return folder.string();
  return vocab_size == 256 ? "bytes" : "";
}

std::unique_ptr<Tokenizer> find_model_tokenizer(const std::string& name, const std::filesystem::path& model,
                                                std::size_t vocab_size) {
  const std::string found = name_of_model_tokenizer(name, model, vocab_size);
  if (found.empty()) return nullptr;
  return open_tokenizer(found);
}

std::optional<std::string> doubt_tokenizer(const Tokenizer& tokenizer, const std::string& name, std::size_t vocab_size,
                                           const std::filesystem::path& model) {
  if (tokenizer.vocab_size() > vocab_size)
    return format(
        "the tokenizer has {} tokens, but the model has only {}: texts with a token that the model does not have are refused "
        "(if there are many such texts, this is the tokenizer of another model)",
        tokenizer.vocab_size(), vocab_size);
  if (name.empty() || model.empty() || !has_tokenizer(model) || find_tokenizer(name) == find_tokenizer(model.string()))
    return std::nullopt;
  const auto own = open_tokenizer(model.string());
  for (std::size_t id = 0; id < std::min(tokenizer.vocab_size(), own->vocab_size()); ++id) {
    const std::string here = tokenizer.spelling(narrow<TokenId>(id)), there = own->spelling(narrow<TokenId>(id));
    if (here != there)
      return format(
          "the tokenizer {} is not the model's: token {} is '{}', and '{}' in {} (the model may have learned the latter); "
          "use the model's own tokenizer, unless the model is to learn another one",
          name, id, excerpt(here), excerpt(there), model.string());
  }
  return std::nullopt;
}

ModelTexts find_model_texts(const std::filesystem::path& folder, const std::filesystem::path& origin, const std::string& name,
                            std::size_t vocab_size) {
  ModelTexts texts;
  texts.tokenizer = find_model_tokenizer(name, folder, vocab_size);
  const bool has_folder = kind_of(folder) == PathKind::folder || name.empty();
  texts.end = find_end_tokens(has_folder ? folder : folder_of_tokenizer(name), origin, texts.tokenizer.get(), vocab_size);
  return texts;
}

void require_tokens_of_model(const std::vector<TokenId>& ids, const Tokenizer& tokenizer, std::size_t vocab_size,
                             const std::string& what) {
  for (const TokenId id : ids)
    if (id < 0 || static_cast<std::size_t>(id) >= vocab_size)
      throw UserError(format(
          "{} holds the token '{}' ({}), which the model does not have (its tokens are 0 to {}); leave it out, or give the "
          "model's own tokenizer by --tokenizer",
          what, excerpt(tokenizer.spelling(id)), id, vocab_size - 1));
}

std::vector<TokenId> encode_prompt(const std::string& text, const Tokenizer& tokenizer, std::size_t vocab_size,
                                   const std::string& what) {
  std::vector<TokenId> ids = tokenizer.before_text();
  tokenizer.encode(text, ids);
  if (ids.empty()) throw UserError(format("{} has no tokens (the tokenizer drops all of its text); give another prompt", what));
  require_tokens_of_model(ids, tokenizer, vocab_size, what);
  return ids;
}

}  // namespace fsdp
