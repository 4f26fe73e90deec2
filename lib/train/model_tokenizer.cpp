#include "train/model_tokenizer.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

void add_model_tokenizer_option(OptionTable& table, std::string& name) {
  table
      .text("tokenizer", "NAME", name,
            "the model's tokenizer: tokenizer.json, tokenizer.model, a folder with one of them, or bytes")
      .unset("the one that lies with MODEL, or bytes if the model has 256 tokens")
      .sets("tokenizer");
}

std::filesystem::path folder_beside(const TensorSource& source, const std::filesystem::path& path) {
  const auto* const checkpoint = dynamic_cast<const CheckpointReader*>(&source);
  if (!checkpoint) return path;
  const std::filesystem::path before = checkpoint->header().model_folder;
  if (!has_tokenizer(checkpoint->folder()) && !before.empty() && has_tokenizer(before) &&
      kind_of(before / "config.json") == PathKind::file && read_config(before).vocab_size == source.config().vocab_size)
    return before;
  return checkpoint->folder();
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
  auto tokenizer = open_tokenizer(found);
  require_tokenizer_of_model(*tokenizer, vocab_size, format("the tokenizer '{}'", found));
  return tokenizer;
}

void require_tokenizer_of_model(const Tokenizer& tokenizer, std::size_t vocab_size, const std::string& who,
                                const char* remedy) {
  if (tokenizer.vocab_size() > vocab_size)
    throw UserError(format("{} has {} tokens and the model {} (it is that of another model); {}", who, tokenizer.vocab_size(),
                           vocab_size, remedy));
}

}  // namespace fsdp
